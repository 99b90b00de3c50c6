"""Tables, comparisons, figures and a page, from run folders.

No model is needed. :mod:`otpt.report.figures` and :mod:`otpt.report.page` are imported separately.

>>> results = open_results([Path("runs/main")])                                    # doctest: +SKIP
>>> print(build_tables(results)[0].to_markdown())                                  # doctest: +SKIP
>>> compare_methods(results, "o-tpt", "c-tpt")[-1].differences["ece"].p            # doctest: +SKIP
"""

from otpt.report.comparison import (
    Comparison,
    Difference,
    compare_methods,
    compare_with_others,
    comparison_frame,
    comparison_notes,
    comparison_table,
    gap,
    ranked,
)
from otpt.report.formats import FORMATS, Table, render
from otpt.report.layouts import (
    Layout,
    Reference,
    Selection,
    build_tables,
    get_layout,
    get_reference,
    register_layout,
    register_reference,
)
from otpt.report.results import ResultKey, Results, open_models, open_results
from otpt.report.rows import confusions, per_class
from otpt.report.tables import evaluation_table, metric_tables

__all__ = [
    "FORMATS", "Comparison", "Difference", "Layout", "Reference", "ResultKey", "Results", "Selection", "Table",
    "build_tables", "compare_methods", "compare_with_others", "comparison_frame", "comparison_notes",
    "comparison_table", "confusions", "evaluation_table", "gap", "get_layout",
    "get_reference", "metric_tables", "open_models", "open_results", "per_class", "ranked", "register_layout",
    "register_reference", "render",
]  # fmt: skip
