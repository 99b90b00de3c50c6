"""Plugin of published papers: their numbers, the layouts of the O-TPT paper's tables, and ``otpt reproduce``.

A package next to :mod:`otpt` that uses its public names only. Entry points of the groups ``otpt.plugins.reports``
(:mod:`otpt_papers.plugin`) and ``otpt.commands`` (:data:`COMMANDS`) name it; see :mod:`otpt.plugins`.

>>> from otpt_papers.papers import paper_table
>>> from otpt_papers.comparison import compare_with_paper
>>> from otpt_papers.reproduce import make_plan
"""

COMMANDS = {
    "Evaluate methods": {"reproduce": ("otpt_papers.commands:reproduce", "plan or run a paper's tables")},
}
