"""Image towers with less work for the same features."""
