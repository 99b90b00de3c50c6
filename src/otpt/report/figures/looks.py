"""How methods are drawn: colours that the colour-blind tell apart, and never a colour alone.

Colours are those of Okabe and Ito, with grey in place of black, which would vanish on a dark background, and olive in
place of yellow, which does on a light one. A method keeps its colour in every figure; lines have markers and dashes of
their own, bars hatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
OLIVE, BLUE, VERMILION, PURPLE = "#8F8500", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#777777"


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    colour: str
    marker: str
    dash: str
    hatch: str


_OWN = {
    "zero-shot": Look(GREY, "s", ":", ""),
    "tpt": Look(VERMILION, "^", "--", "////"),
    "c-tpt": Look(BLUE, "D", "-.", "\\\\\\\\"),
    "o-tpt": Look(GREEN, "o", "-", ""),
    "tpt+ts": Look(PURPLE, "v", "--", "...."),
    "c-tpt+penalty": Look(ORANGE, "P", "-.", "xxxx"),
    "c-tpt+sals": Look(SKY, "X", ":", "----"),
}
_COLOURS = (GREEN, BLUE, VERMILION, PURPLE, ORANGE, SKY, GREY, OLIVE)
_MARKERS = ("o", "D", "^", "v", "P", "X", "s", "<", ">", "*", "p")
_DASHES = ("-", "--", "-.", ":")
_HATCHES = ("", "////", "\\\\\\\\", "....", "xxxx", "----", "++++")


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each method: known ones always have their own, the others share what is left."""
    taken = {_OWN[name].colour for name in methods if name in _OWN}
    free = [colour for colour in _COLOURS if colour not in taken] or list(_COLOURS)
    found: dict[str, Look] = {}
    others = 0
    for name in methods:
        if name in _OWN:
            found[name] = _OWN[name]
            continue
        turn = others % len(free) + others // len(free)  # methods of one colour differ in the rest
        found[name] = Look(
            free[others % len(free)],
            _MARKERS[others % len(_MARKERS)],
            _DASHES[turn % len(_DASHES)],
            _HATCHES[turn % len(_HATCHES)],
        )
        others += 1
    return found
