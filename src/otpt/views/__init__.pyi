from .draws import AugMixDraw, CropBox, Operation, ViewDraw, draw_view
from .loader import ViewLoader
from .picture import MAX_PIXELS, PictureSource, open_picture, open_with_digest, picture_digest
from .recipe import PreprocessingLike, ViewRecipe, make_views

__all__ = [
    "MAX_PIXELS",
    "AugMixDraw",
    "CropBox",
    "Operation",
    "PictureSource",
    "PreprocessingLike",
    "ViewDraw",
    "ViewLoader",
    "ViewRecipe",
    "draw_view",
    "make_views",
    "open_picture",
    "open_with_digest",
    "picture_digest",
]
