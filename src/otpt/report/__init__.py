"""From run folders to insight: tables in the paper's layouts, the paper's numbers, comparisons. No model is needed.

>>> results = open_results([Path("runs/main")])                                    # doctest: +SKIP
>>> print(render(build_tables(results, "main"), "markdown"))                       # doctest: +SKIP
>>> compare_methods(results, "o-tpt", "c-tpt")[-1].of("ece").p                     # doctest: +SKIP
"""

from otpt.report.building import Choice, build_tables
from otpt.report.compare import Comparison, Difference, compare_methods, conclusion
from otpt.report.errata import conflicts, repeated_cells, wrong_averages
from otpt.report.formats import FORMATS, render
from otpt.report.layouts import LAYOUTS
from otpt.report.paper import PaperTable, paper_numbers, paper_table, paper_tables
from otpt.report.runs import Cell, Progress, Results, Rows, open_results
from otpt.report.tables import Entry, Line, Table

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
