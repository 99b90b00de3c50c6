"""Views of images: a clean view and augmented views, determined by seed and image id."""

from otpt.views.draws import Operation, draw_view
from otpt.views.recipe import Preprocessing, ViewRecipe, make_views, normalised, unit_pixels

__all__ = ["Operation", "Preprocessing", "ViewRecipe", "draw_view", "make_views", "normalised", "unit_pixels"]
