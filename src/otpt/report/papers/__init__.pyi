from .errata import conflicts, repeated_cells, wrong_averages
from .paper import BACKBONES, PaperTable, layout_tables, paper_numbers, paper_table, paper_tables
from .plans import Conditions, Plan, PlannedRun, PlannedTable
from .published import PAPERS, Erratum, Paper, Protocol, get_paper
from .reproduce import STUDIES, Study, get_study, make_plan

__all__ = [
    "BACKBONES",
    "PAPERS",
    "STUDIES",
    "Conditions",
    "Erratum",
    "Paper",
    "PaperTable",
    "Plan",
    "PlannedRun",
    "PlannedTable",
    "Protocol",
    "Study",
    "conflicts",
    "get_paper",
    "get_study",
    "layout_tables",
    "make_plan",
    "paper_numbers",
    "paper_table",
    "paper_tables",
    "repeated_cells",
    "wrong_averages",
]
