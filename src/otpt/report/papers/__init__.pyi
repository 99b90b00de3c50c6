from .errata import conflicts, repeated_cells, wrong_averages
from .paper import BACKBONES, PaperTable, layout_tables, paper_numbers, paper_table, paper_tables
from .plans import Conditions, Plan, PlannedRun, PlannedTable
from .reproduce import make_plan

__all__ = [
    "BACKBONES",
    "Conditions",
    "PaperTable",
    "Plan",
    "PlannedRun",
    "PlannedTable",
    "conflicts",
    "layout_tables",
    "make_plan",
    "paper_numbers",
    "paper_table",
    "paper_tables",
    "repeated_cells",
    "wrong_averages",
]
