from .curves import pairwise_cosines
from .kinds import FIGURES, THEMES, FigureKind, draw
from .selection import Selection, select
from .similarity import PromptTexts, draw_similarity
from .style import FORMATS, check_format, save, styled

__all__ = [
    "FIGURES",
    "FORMATS",
    "THEMES",
    "FigureKind",
    "PromptTexts",
    "Selection",
    "check_format",
    "draw",
    "draw_similarity",
    "pairwise_cosines",
    "save",
    "select",
    "styled",
]
