"""Methods at work: those that share an init, on batches of images."""
