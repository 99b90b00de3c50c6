"""Training of the embedded model ``pocket-photo``, without a training image: ``python -m training.photo WORK``."""
