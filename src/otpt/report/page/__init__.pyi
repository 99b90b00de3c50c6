from .defaults import IMAGES, TITLE
from .page import make_page, write_page

__all__ = ["IMAGES", "TITLE", "make_page", "write_page"]
