"""Commands that classify images: ``predict``, ``serve``, ``calibrate``."""
