from .decoding import MAX_PIXELS
from .opening import KEYS, ImageSource, image_digest, open_image, open_with_digest
from .urls import UrlLimits, fetch_url, is_url

__all__ = [
    "KEYS",
    "MAX_PIXELS",
    "ImageSource",
    "UrlLimits",
    "fetch_url",
    "image_digest",
    "is_url",
    "open_image",
    "open_with_digest",
]
