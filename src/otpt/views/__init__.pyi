from .draws import AugMixDraw, CropBox, Operation, ViewDraw, draw_view
from .recipe import PreprocessingLike, ViewRecipe, make_views
from .unit import normalised, unit_pixels

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
