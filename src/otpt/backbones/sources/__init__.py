"""Where models come from: names, files, the hub, objects in memory. Nothing that is read is executed."""
