from .drawing.curves import pairwise_cosines
from .drawing.looks import THEMES
from .drawing.style import FORMATS, check_format, save, styled
from .kinds import FIGURES, FigureKind, draw
from .selection import Selection, select
from .similarity import PromptTexts, draw_similarity

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
