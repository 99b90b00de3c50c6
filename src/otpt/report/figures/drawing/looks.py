"""How methods are drawn: colours that the colour-blind tell apart, and never a colour alone.

Colours are those of Okabe and Ito, with grey in place of black, which would vanish on a dark background, and olive in
place of yellow, which does on a light one. A method keeps its colour in every figure; lines have markers and dashes of
their own, bars hatches. Without matplotlib: the command line names the themes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ORANGE, SKY, GREEN = "#E69F00", "#56B4E9", "#009E73"
OLIVE, BLUE, VERMILION, PURPLE = "#8F8500", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#777777"

PALETTES = {  # background, ink, secondary text, grid
    "light": ("#FFFFFF", "#000000", "#444444", "#E4E4E4"),
    "dark": ("#14191F", "#E6EDF3", "#AEB8C2", "#333C46"),
}
THEMES = tuple(PALETTES)
"""Colours that a figure can have: for a light page, or for a dark one."""


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
    "confident-half": Look(OLIVE, "p", "-", "++++"),
    "tpt+ts": Look(PURPLE, "v", "--", "...."),
    "c-tpt+penalty": Look(ORANGE, "P", "-.", "xxxx"),
    "c-tpt+sals": Look(SKY, "X", ":", "----"),
}
_COLOURS = (PURPLE, ORANGE, SKY, GREEN, BLUE, VERMILION, OLIVE, GREY)
"""For all other methods. Colours that readers know as those of the main methods come last, also where these are not
drawn: two figures of one run are read side by side."""
_MARKERS = ("<", ">", "h", "v", "P", "X", "d", "*", "o", "D", "^", "s", "p")
_DASHES = ("-", "--", "-.", ":")
_HATCHES = ("", "////", "\\\\\\\\", "....", "xxxx", "----", "++++")


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each method: known ones always have their own, the others share what is left."""
    known = [_OWN[name] for name in methods if name in _OWN]
    free = [each for each in _COLOURS if each not in {look.colour for look in known}] or list(_COLOURS)
    markers = [each for each in _MARKERS if each not in {look.marker for look in known}]
    found: dict[str, Look] = {}
    others = 0
    for name in methods:
        if name in _OWN:
            found[name] = _OWN[name]
            continue
        turn = others % len(free) + others // len(free)  # methods of one colour differ in the rest
        found[name] = Look(
            free[others % len(free)],
            markers[others % len(markers)],
            _DASHES[turn % len(_DASHES)],
            _HATCHES[turn % len(_HATCHES)],
        )
        others += 1
    return found
