from .curves import pairwise_cosines
from .kinds import FIGURES, FigureKind, draw
from .selection import Selection, select
from .similarity import PromptTexts, draw_similarity
from .style import FORMATS, check_format, save, styled
from .themes import THEMES

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
