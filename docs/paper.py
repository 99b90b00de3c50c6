"""Write ``docs/paper.md``: each equation, table and figure of the paper with its command, code and what was run.

    python docs/paper.py --check | --write

Tables and figures come from the plan of ``otpt reproduce paper``; files named here must exist.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from otpt_papers.jobs import Exhibit
from otpt_papers.papers import OTPT, get_paper
from otpt_papers.reproduce import Plan, make_plan

PAGE = Path(__file__).with_name("paper.md")
ROOT = PAGE.parents[1]


class Equation(NamedTuple):
    """An equation or a step of the method: what it is, how it is used, its code, its test, and what was compared."""

    what: str
    command: str
    code: str
    test: str
    compared: str


EQUATIONS = (
    Equation(
        "§3.1: cosine scores, softmax with temperature, argmax, confidence",
        "otpt predict IMAGE --classes … --methods zero-shot",
        "src/otpt/methods/state.py",
        "tests/methods/prompt_tuning",
        "literal code in float64: 6e-16",
    ),
    Equation(
        "§3.1: the prompt 'a photo of a {class}', with a full stop as in the released code",
        "--prompt 'a photo of a'",
        "src/otpt/prompts/prompt.py",
        "tests/prompts/test_prompts.py",
        "the same tokens as the released code",
    ),
    Equation(
        "Equation 1: ECE, with 20 bins (lo, hi] as in the released code",
        "otpt metrics RUN --metrics ece --bins 20",
        "src/otpt/metrics/binned.py",
        "tests/metrics/test_reference.py",
        "the released ECE on 3,000 rows: equal",
    ),
    Equation(
        "SCE, class by class",
        "otpt metrics RUN --metrics sce",
        "src/otpt/metrics/binned.py",
        "tests/metrics/test_reference.py",
        "a literal class-wise formula with 15 and 20 bins: 5e-9",
    ),
    Equation(
        "L_TPT: entropy of the mean of the 10 % most confident of 64 views",
        "--methods tpt",
        "src/otpt/objectives.py",
        "tests/methods/prompt_tuning",
        "literal code: 4e-16",
    ),
    Equation(
        "C-TPT's ATFD, the mean distance of text features from their centroid",
        "--methods c-tpt",
        "src/otpt/objectives.py",
        "tests/methods/prompt_tuning",
        "literal code: 3e-16",
    ),
    Equation(
        "Equation 2: λ‖E Eᵀ − I‖₂² with λ = 18 (2 under distribution shift)",
        "--methods o-tpt (as released), o-tpt-squared (as printed, Frobenius norm), o-tpt-spectral (spectral norm)",
        "src/otpt/objectives.py",
        "tests/objectives/test_objectives.py",
        "released and printed forms against literal code: 7e-16, 4e-16",
    ),
    Equation(
        "§3.2: Householder transformation of E Eᵀ",
        "--methods o-tpt; without: o-tpt-rows, o-tpt-frobenius",
        "src/otpt/objectives.py",
        "tests/oracles/methods/householder.py",
        "C × C × C transformation as released: 7e-16",
    ),
    Equation(
        "§4.1: one AdamW step of 0.005, state reset for each image",
        "--set learning-rate=0.005 steps=1",
        "src/otpt/methods/tuner.py",
        "tests/methods/prompt_tuning",
        "torch's AdamW for 14 methods: 8e-16",
    ),
    Equation(
        "§4.1: 64 views by crops, flips and AugMix",
        "--views 64",
        "src/otpt/views/recipe.py",
        "tests/views/test_operations.py",
        "39 views from the same draws as the released operations: 7e-7",
    ),
    Equation(
        "Robust-adapt: SaLS, Penalty, ZS on C-TPT",
        "--methods c-tpt+sals c-tpt+penalty c-tpt+zs",
        "src/otpt/calibration/logits.py",
        "tests/methods/test_posthoc.py",
        "literal code: 8e-16",
    ),
    Equation(
        "Figure 5: temperature scaling of TPT, with C-TPT's constants or fitted",
        "--methods tpt+ts; otpt calibrate DATASET --split val --methods tpt --maps temperature",
        "src/otpt/calibration/maps.py",
        "tests/calibration/test_fitted.py",
        "constants of the released code",
    ),
)
CODE = {"table": "src/otpt_papers/layouts.py", "radar": "src/otpt/report/figures/metrics.py"}
CODE |= dict.fromkeys(("posthoc", "pareto"), "src/otpt/report/figures/metrics.py")
CODE |= dict.fromkeys(("similarity", "geometry", "cosine", "templates"), "src/otpt/report/figures/cosines.py")
CODE |= {"reliability": "src/otpt/report/figures/bins.py"}

HEAD = """\
# The paper, item by item

Every equation, table and figure of O-TPT (CVPR 2025), with its command, its code, and what was run.
Written by `docs/paper.py` from the plan that `otpt reproduce paper` prints and runs;
[Reproduce the paper](reproduce.md) says how to start.

!!! warning "What was and was not run"
    **Not run by anybody here: the published weights on the published data.** All tables and figures below were
    *rehearsed* (`make rehearse`): small archives of all data sets in their official structure with full class lists,
    downloaded and prepared; small random stand-ins of ViT-B/16, RN50, MedCLIP, PLIP and the frozen ViT; checkpoints in
    the formats of CoOp and MaPLe; two images of each set (60 for a temperature), four views, one epoch. It ended with
    all 19 tables and 10 figures. It shows that every command works, not that the numbers agree.
"""


def page() -> str:
    """Return the whole page."""
    plan = make_plan("paper")
    parts = [HEAD, "## Equations and steps of the method\n"]
    parts.append("| what | command | code | checked by | compared with |\n| --- | --- | --- | --- | --- |")
    for row in EQUATIONS:
        cells = (row.what, _code(row.command), _path(row.code), _path(row.test), row.compared)
        parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    for kind in ("table", "figure"):
        parts.append(f"\n## {kind.capitalize()}s\n")
        numbers = [exhibit.number for exhibit in plan.exhibits if exhibit.kind == kind]
        for number in sorted(dict.fromkeys(numbers), key=int):
            parts += _section(plan, kind, number)
    parts += [
        "\n## All commands\n",
        "DATA is the folder of the data sets, FILE and FOLDER are [checkpoints](reproduce.md#checkpoints).\n",
    ]
    parts += ["```sh", *(f"{job.line}" for job in plan.jobs), "```"]
    return "\n".join(parts) + "\n"


def _section(plan: Plan, kind: str, number: str) -> list[str]:
    """Return the part of the page on one table or figure."""
    exhibits = [exhibit for exhibit in plan.exhibits if (exhibit.kind, exhibit.number) == (kind, number)]
    first = exhibits[0]
    backbones = " and ".join(dict.fromkeys(exhibit.backbone for exhibit in exhibits))
    lines = [f"### {first.name}: {first.title} ({backbones})\n", "```sh"]
    lines.append(f"otpt reproduce paper --data DATA --{kind}s {number} --go")
    lines += [_shown(exhibit) for exhibit in exhibits]
    lines.append("```\n")
    jobs = {job.group: job for exhibit in exhibits for job in exhibit.jobs}
    methods = dict.fromkeys(name for exhibit in exhibits for name in exhibit.methods)
    code = CODE["table" if kind == "table" else first.words[1]]
    facts = [f"Runs: {', '.join(_code(group) for group in jobs)}", f"methods: {', '.join(map(_code, methods))}"]
    needs = [job.needs.removeprefix("needs ") for job in jobs.values() if job.needs]
    lines.append(
        f"{'; '.join(facts)}. Code: {_path(code)}. Run: rehearsed with stand-ins, not with the published weights."
    )
    lines += [f"Needs {_linked(need)}." for need in dict.fromkeys(needs)]
    lines += [f"\n- {remark}" for remark in first.remarks]
    if kind == "table":
        paper = get_paper(OTPT)
        marked = [erratum for erratum in paper.errata if erratum.table == number]
        for erratum in marked:
            lines.append(
                f"\n- Printed average {erratum.metric} of {_code(erratum.method)}: {erratum.printed}; {erratum.other} "
                f"is {erratum.reason}."
            )
    return [*lines, ""]


def _shown(exhibit: Exhibit) -> str:
    return shlex.join(("otpt", *exhibit.commands()[0]))


def _code(text: str) -> str:
    return f"`{text}`"


def _path(name: str) -> str:
    if not (ROOT / name).exists():
        raise SystemExit(f"docs/paper.py names {name}, which does not exist.")
    return _code(name)


def _linked(text: str) -> str:
    return re.sub(r"(https://[^\s);]+)", r"<\1>", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write the page; exit code 1 if ``--check`` finds that it is not up to date."""
    parser = argparse.ArgumentParser(prog="python docs/paper.py", description=__doc__.partition("\n")[0])
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    text = page()
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE}: not up to date, run with --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
