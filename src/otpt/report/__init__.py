"""Tables in the paper's layouts, published numbers, comparisons, figures and a page, from run folders.

No model is needed. :mod:`otpt.report.figures` and :mod:`otpt.report.page` are imported separately.

>>> results = open_results([Path("runs/main")])                                    # doctest: +SKIP
>>> print(build_tables(results, "main")[0].to_markdown())                          # doctest: +SKIP
>>> compare_methods(results, "o-tpt", "c-tpt")[-1].differences["ece"].p            # doctest: +SKIP
"""

from otpt.report.comparison import Comparison, Difference, compare_methods, comparison_table, gap, ranked
from otpt.report.formats import FORMATS, Table, render
from otpt.report.layouts import build_tables
from otpt.report.paper_comparison import compare_with_paper
from otpt.report.papers import LAYOUTS, PAPERS, Paper, get_paper, paper_table, published
from otpt.report.results import ResultKey, Results, open_models, open_results
from otpt.report.rows import confusions, per_class
from otpt.report.tables import evaluation_table, metric_tables

__all__ = [
    "FORMATS", "LAYOUTS", "PAPERS", "Comparison", "Difference", "Paper", "ResultKey", "Results", "Table",
    "build_tables", "compare_methods", "compare_with_paper", "comparison_table", "confusions", "evaluation_table",
    "gap", "get_paper", "metric_tables", "open_models", "open_results", "paper_table", "per_class", "published",
    "ranked", "render",
]  # fmt: skip
