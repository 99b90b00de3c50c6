from .compare import Comparison, Difference, compare_methods, conclusion
from .papers import PaperTable, conflicts, paper_numbers, paper_table, paper_tables, repeated_cells, wrong_averages
from .results import Progress, ResultKey, Results, open_results
from .tables import FORMATS, LAYOUTS, Choice, Entry, Line, Table, build_tables, render

__all__ = [
    "FORMATS",
    "LAYOUTS",
    "Choice",
    "Comparison",
    "Difference",
    "Entry",
    "Line",
    "PaperTable",
    "Progress",
    "ResultKey",
    "Results",
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
