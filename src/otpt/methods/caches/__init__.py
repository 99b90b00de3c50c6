"""Stream methods: caches, memories and prototypes that are carried from image to image. One module each."""
