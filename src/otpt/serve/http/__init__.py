"""Requests and answers: what is read, checked, refused and sent."""
