"""Tasks beyond one label per image: classes by example images, several labels."""
