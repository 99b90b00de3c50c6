"""What the plugin registers: layouts of tables, papers and a figure."""

from otpt.report import register_layout, register_reference
from otpt.report.figures import register_figure
from otpt_papers.figures import draw_groups
from otpt_papers.layouts import LAYOUTS, MAIN
from otpt_papers.papers import OTPT, PAPERS
from otpt_papers.references import OtptPaper, PeerPaper

for name, layout in LAYOUTS.items():
    register_layout(name, layout, default=name == MAIN)
register_reference(OTPT, OtptPaper(), default=True)
for name in PAPERS:
    if name != OTPT:
        register_reference(name, PeerPaper(name))
register_figure("groups", draw_groups, methods=("tpt", "c-tpt", "o-tpt"))
