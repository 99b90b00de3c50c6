"""How many views of an image, and what they are keyed by."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from otpt.runs.format import VIEW_KEYS

if TYPE_CHECKING:
    from otpt.views import ViewRecipe


def add_view_key_option(parser: Any) -> None:
    """What the random views of an image are keyed by, beside the seed."""
    parser.add_argument(
        "--view-key",
        choices=VIEW_KEYS,
        default=VIEW_KEYS[0],
        help="what keys the views of an image: its decoded pixels, or the bytes of its file, as runs of earlier "
        "versions did (default: %(default)s)",
    )


def add_views_options(parser: Any) -> None:
    """How many views of an image are made."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--views", type=int, metavar="N", help="views per image, including the clean one (default: 64)")
    group.add_argument(
        "--budget",
        type=int,
        metavar="N",
        help="at most N views per image, and fewer where the first 8, or 32, agree on the label",
    )


def chosen_recipe(options: argparse.Namespace) -> ViewRecipe:
    """The views that the options describe."""
    from otpt.views import ViewRecipe

    if options.budget is not None:
        return ViewRecipe.within(options.budget)
    return ViewRecipe() if options.views is None else ViewRecipe(n_views=options.views)
