"""The method that people get who choose none: ``python -m benchmarks.default WORK --photographs FOLDER --model DIR``.

The protocol was fixed before the numbers were seen. All candidates are compared on the sets ``CHOOSE``; the best ones
are confirmed, once, on the sets ``CONFIRM``, beside zero-shot, TPT and O-TPT. With three seeds, and averages over the
sets:

1. accuracy at least that of TPT less 0.3 points;
2. debiased ECE at most that of zero-shot plus 0.3 points;
3. of those, the lowest NLL.

Differences to the winner are those of a bootstrap over the images of each set, the same images for all methods. The
run folders are those of ``benchmarks.field`` and grow: give both the same folder. ``--write`` puts the tables into
``docs/default.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.field import Cells, add_options, benches, summarise
from benchmarks.pages import put_into
from otpt.methods import Method, get_method
from otpt.runs import Run

PAGE = Path(__file__).resolve().parent.parent / "docs" / "default.md"
CHOOSE = {"emoji": ("activities", "food", "symbols", "line", "noise"), "photographs": ("caltech101",)}
CONFIRM = {
    "emoji": ("animals", "travel", "objects", "smileys", "flags", "grey", "blur", "small"),
    "photographs": ("eurosat",),
}
ACCURACY, CALIBRATION = -0.003, 0.003  # beside TPT's accuracy and zero-shot's debiased ECE

CONFIRMED = 3  # the best of those chosen from
KNOWN = ("zero-shot", "tpt", "o-tpt")
TUNED = ("tpt", "o-tpt", "a-tpt", "soc")
AVERAGED = ("zero-shot", "tpt", "o-tpt")
MEANS = ("mean-probability", "mean-logit", "mean-feature")


def candidates() -> list[Method]:
    """What is compared; variants are named by their settings."""
    names = ["zero-shot", "zero-shot+weak-strong", "zero-shot+e-cots", "use"]
    for base in TUNED:
        names += [base, *(f"{base}+{part}" for part in ("weak-strong", "cots", "e-cots", "agreement"))]
        names.append(f"{base}+agreement+e-cots")
    for base in AVERAGED:
        names += [f"{base}+{part}" for part in (*MEANS, "reliability", "se")]
    found = [get_method(name) for name in names]
    for base in AVERAGED:
        found += [variant(f"{base}+{mean}", "clean-weight", 0.5) for mean in MEANS]
    found += [variant(f"zero-shot+{mean}", "mean-fraction", 0.5) for mean in MEANS]
    return found


def variant(name: str, setting: str, value: float) -> Method:
    """A method with one setting replaced, named after it."""
    return replace(get_method(name).override({setting: value}), name=f"{name} ({setting} {value:g})")


@dataclass(frozen=True)
class Standing:
    """One candidate on some sets: its numbers, what they lack, and its NLL less the winner's with half an interval."""

    method: str
    cells: Cells
    fails: tuple[str, ...]
    behind: float = 0.0
    half: float = 0.0

    @property
    def nll(self) -> float:
        """The mean over sets."""
        return self.cells["nll"][0]


def stand(cells: dict[str, Cells]) -> list[Standing]:
    """The candidates, best first: those that meet the bar by NLL, then the others by what they lack and NLL."""
    least = cells["tpt"]["accuracy"][0] + ACCURACY
    most = cells["zero-shot"]["debiased_ece"][0] + CALIBRATION
    found = []
    for method, own in cells.items():
        fails = ("accuracy",) * (own["accuracy"][0] < least) + ("calibration",) * (own["debiased_ece"][0] > most)
        found.append(Standing(method, own, fails))
    found.sort(key=lambda each: (len(each.fails), each.nll))
    best = found[0].cells["nll"]
    compared = []
    for each in found:
        estimate, resampled = each.cells["nll"]
        half = 1.96 * float(np.std(resampled - best[1], ddof=1))
        compared.append(replace(each, behind=estimate - best[0], half=half))
    return compared


def average(cells: Sequence[tuple[Cells, int]]) -> Cells:
    """Of several benches, each with its number of sets: the mean over all sets, and of their resamples."""
    total = sum(sets for _, sets in cells)
    return {
        metric: (
            sum(own[metric][0] * sets for own, sets in cells) / total,
            np.sum([own[metric][1] * sets for own, sets in cells], axis=0) / total,
        )
        for metric in cells[0][0]
    }


def table(standings: Sequence[Standing]) -> str:
    """Markdown, a row per candidate."""
    titles = ["method", "accuracy %", "ECE %", "debiased ECE %", "NLL", "NLL less the first's", "AURC %", "lacks"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for each in standings:
        own = each.cells
        percent = {metric: f"{100 * own[metric][0]:.1f}" for metric in ("accuracy", "ece", "debiased_ece", "aurc")}
        behind = f"{each.behind:+.3f} ± {each.half:.3f}" if each is not standings[0] else "–"
        shown = (percent["accuracy"], percent["ece"], percent["debiased_ece"], f"{each.nll:.3f}", behind)
        lacks = ", ".join(each.fails) or "–"
        lines.append(f"| `{each.method}` | {' | '.join(shown)} | {percent['aurc']} | {lacks} |")
    return "\n".join(lines)


def to_confirm(standings: Sequence[Standing], methods: Sequence[Method]) -> list[Method]:
    """The best candidates, and what everybody knows beside them."""
    names = (*(each.method for each in standings[:CONFIRMED]), *KNOWN)
    return [method for method in methods if method.name in names]


def summarised(
    runs: Mapping[str, Run], sets: Mapping[str, Sequence[str]], names: Sequence[str], seeds: Sequence[int]
) -> dict[str, Cells]:
    """Every candidate on these sets of all benches that were run."""
    found = {}
    for name in names:
        parts = []
        for bench, run in runs.items():
            chosen = [f"emoji/{each}" if bench == "emoji" else each for each in sets[bench]]
            parts.append((summarise(run, name, seeds, chosen), len(chosen)))
        found[name] = average(parts)
    return found


def main() -> None:
    """Measure what is missing, then print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args()
    methods, seeds = candidates(), tuple(range(options.seeds))
    for title, sets in (("choose", CHOOSE), ("confirm", CONFIRM)):
        own = [bench.of(sets[bench.name]) for bench in benches(options)]
        runs = {bench.name: bench.measure(options, methods, seeds) for bench in own}
        standings = stand(summarised(runs, sets, [method.name for method in methods], seeds))
        text = table(standings)
        print(f"\n{title}:\n{text}", flush=True)
        if options.write:
            put_into(PAGE, title, text)
        methods = to_confirm(standings, methods)


if __name__ == "__main__":
    main()
