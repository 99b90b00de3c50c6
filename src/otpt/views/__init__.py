"""One picture → its clean view and n augmented views, reproducible from (seed, picture id) alone."""

from otpt.views.draws import AugMixDraw, CropBox, Operation, ViewDraw, draw_view
from otpt.views.loader import ViewLoader
from otpt.views.picture import MAX_PIXELS, PictureSource, open_picture, open_with_digest, picture_digest
from otpt.views.recipe import PreprocessingLike, ViewRecipe, make_views

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
