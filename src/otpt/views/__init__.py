"""One image → its clean view and n augmented views, reproducible from (seed, image id) alone."""

from otpt.views.draws import Operation, draw_view
from otpt.views.recipe import Preprocessing, ViewRecipe, make_views, normalised, unit_pixels

__all__ = ["Operation", "Preprocessing", "ViewRecipe", "draw_view", "make_views", "normalised", "unit_pixels"]
