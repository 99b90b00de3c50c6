from .beside import Beside, BesideRow, Subset, set_beside
from .beside_formats import beside_data, render_beside
from .building import Choice, build_tables, guess_backbone
from .formats import FORMATS, render, table_data
from .layouts import LAYOUTS, Layout
from .scores import Number, ScoreTable, metric_table, score_tables
from .table import Column, Entry, Line, Table

__all__ = [
    "FORMATS",
    "LAYOUTS",
    "Beside",
    "BesideRow",
    "Choice",
    "Column",
    "Entry",
    "Layout",
    "Line",
    "Number",
    "ScoreTable",
    "Subset",
    "Table",
    "beside_data",
    "build_tables",
    "guess_backbone",
    "metric_table",
    "render",
    "render_beside",
    "score_tables",
    "set_beside",
    "table_data",
]
