"""One image → its clean view and n augmented views, reproducible from (seed, image id) alone."""

from otpt.views.draws import AugMixDraw, CropBox, Operation, ViewDraw, draw_view
from otpt.views.recipe import PreprocessingLike, ViewRecipe, make_views, normalised, unit_pixels

__all__ = [
    "AugMixDraw",
    "CropBox",
    "Operation",
    "PreprocessingLike",
    "ViewDraw",
    "ViewRecipe",
    "draw_view",
    "make_views",
    "normalised",
    "unit_pixels",
]
