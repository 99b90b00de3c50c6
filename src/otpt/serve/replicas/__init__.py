"""The service on several processes: a door in front, replicas on Ray behind."""
