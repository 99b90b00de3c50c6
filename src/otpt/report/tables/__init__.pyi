from .building import Choice, build_tables, guess_backbone
from .formats import FORMATS, render, table_data
from .layouts import LAYOUTS, Layout
from .scores import Number, ScoreTable, metric_table, score_tables
from .table import Column, Entry, Line, Table

__all__ = [
    "FORMATS",
    "LAYOUTS",
    "Choice",
    "Column",
    "Entry",
    "Layout",
    "Line",
    "Number",
    "ScoreTable",
    "Table",
    "build_tables",
    "guess_backbone",
    "metric_table",
    "render",
    "score_tables",
    "table_data",
]
