"""Views in rounds: an image whose first views agree needs no more of them.

After 8 and after 32 views (:data:`otpt.views.recipe.ROUNDS`) the predictions of the views under the initial prompt are
compared. They depend on the image and the seed alone, so that the number of views does too: it is the same for any
batch, order and worker, and whether the other views were encoded for another method or not.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from otpt.entropy import select_fraction
from otpt.views import ViewRecipe

AGREEING = 0.25
"""The fraction of the views, the most confident ones, that must have the clean view's label."""


def is_enough(zero_shot: Tensor) -> bool:
    """Whether the most confident quarter of n views, and at least one, have the clean view's label; logits (n, C)."""
    labels = zero_shot.argmax(dim=1)
    return bool((labels[select_fraction(zero_shot, AGREEING)] == labels[0]).all())


def views_needed(recipe: ViewRecipe, known: int, zero_shot: Callable[[int], Tensor]) -> int:
    """How many views an image needs: the first round that is enough, or all; of ``known`` ones that are encoded.

    ``zero_shot`` gives the logits (n, C) of the first n views. It is asked for those of a round alone: a product with
    more rows may differ in the last bit, and a tie be decided otherwise.
    """
    rounds = (count for count in recipe.rounds if count <= known)
    return next((count for count in rounds if is_enough(zero_shot(count))), recipe.n_views)
