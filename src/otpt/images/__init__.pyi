from .opening import MAX_PIXELS, ImageSource, image_digest, open_image, open_with_digest

__all__ = ["MAX_PIXELS", "ImageSource", "image_digest", "open_image", "open_with_digest"]
