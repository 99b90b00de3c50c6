from .building import Choice, build_tables
from .compare import Comparison, Difference, compare_methods, conclusion
from .errata import conflicts, repeated_cells, wrong_averages
from .formats import FORMATS, render
from .layouts import LAYOUTS
from .paper import PaperTable, paper_numbers, paper_table, paper_tables
from .runs import Cell, Progress, Results, Rows, open_results
from .tables import Entry, Line, Table

__all__ = [
    "FORMATS",
    "LAYOUTS",
    "Cell",
    "Choice",
    "Comparison",
    "Difference",
    "Entry",
    "Line",
    "PaperTable",
    "Progress",
    "Results",
    "Rows",
    "Table",
    "build_tables",
    "compare_methods",
    "conclusion",
    "conflicts",
    "open_results",
    "paper_numbers",
    "paper_table",
    "paper_tables",
    "render",
    "repeated_cells",
    "wrong_averages",
]
