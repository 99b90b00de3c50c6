"""The method that people get who choose none: ``python -m benchmarks.default WORK --photographs FOLDER --model NAME``.

The protocol was fixed before the numbers were seen. All candidates are compared on the sets ``CHOOSE``; the best ones
are confirmed, once, on the sets ``CONFIRM``, next to zero-shot, TPT and O-TPT. Three seeds, averages over sets:

1. accuracy at least that of TPT less 0.3 points;
2. debiased ECE at most that of zero-shot plus 0.3 points;
3. of those, the lowest NLL.

Differences to the winner come from a bootstrap over the images of each set, the same images for all methods. The run
folders are those of ``benchmarks.field`` and grow: give both the same folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.field import add_options, benches, resampled

CHOOSE = ("activities", "food", "symbols", "line", "noise", "caltech101")
CONFIRM = ("animals", "travel", "objects", "smileys", "flags", "grey", "blur", "small", "eurosat")
ACCURACY, CALIBRATION = -0.003, 0.003  # relative to TPT's accuracy and zero-shot's debiased ECE
CONFIRMED = 3  # number of candidates that are confirmed
KNOWN = ("zero-shot", "tpt", "o-tpt")
TUNED = ("tpt", "o-tpt", "a-tpt", "soc")
MEANS = ("mean-probability", "mean-logit", "mean-feature")


def candidates() -> list[str]:
    """What is compared; variants by their settings."""
    names = ["zero-shot", "zero-shot+weak-strong", "zero-shot+e-cots", "use"]
    for base in TUNED:
        names += [base, *(f"{base}+{part}" for part in ("weak-strong", "cots", "e-cots", "agreement"))]
        names.append(f"{base}+agreement+e-cots")
    for base in KNOWN:
        names += [f"{base}+{part}" for part in (*MEANS, "reliability", "se")]
        names += [f"{base}+{mean}[clean-weight=0.5]" for mean in MEANS]
    return [*names, *(f"zero-shot+{mean}[mean-fraction=0.5]" for mean in MEANS)]


def standings(frame: pd.DataFrame) -> pd.DataFrame:
    """The candidates, best first: those that meet the bar by NLL, then the others by what they lack and NLL."""
    values = frame.map(lambda cell: float(cell[0]))
    found = values.copy()
    inaccurate = values["accuracy"] < values.loc["tpt", "accuracy"] + ACCURACY
    uncalibrated = values["debiased_ece"] > values.loc["zero-shot", "debiased_ece"] + CALIBRATION
    found["lacks"] = [
        ", ".join(word for word, holds in (("accuracy", a), ("calibration", c)) if holds) or "–"
        for a, c in zip(inaccurate, uncalibrated, strict=True)
    ]
    found["failures"] = inaccurate.astype(int) + uncalibrated.astype(int)
    found = found.sort_values(["failures", "nll"])
    best = frame.loc[found.index[0], "nll"]
    differences = {name: frame.loc[name, "nll"] - best for name in found.index}
    found["behind"] = [
        f"{each[0]:+.3f} ± {1.96 * np.std(each[1:], ddof=1):.3f}" if i else "–"
        for i, each in enumerate(differences.values())
    ]
    return found


def table(found: pd.DataFrame) -> str:
    """Markdown, a row per candidate."""
    titles = ["method", "accuracy %", "ECE %", "debiased ECE %", "NLL", "NLL less the first's", "AURC %", "lacks"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for method, row in found.iterrows():
        shown = [f"{100 * row[metric]:.1f}" for metric in ("accuracy", "ece", "debiased_ece")]
        cells = [*shown, f"{row['nll']:.3f}", row["behind"], f"{100 * row['aurc']:.1f}", row["lacks"]]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Evaluate what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args()
    methods = candidates()
    for title, sets in (("choose", CHOOSE), ("confirm", CONFIRM)):
        parts, weights = [], []
        for bench in benches(options):
            own = [name for name in bench.datasets if Path(name).name in sets]
            if not own:
                continue
            run = type(bench)(bench.name, bench.backbone, own, bench.images).evaluate(
                options, methods, range(options.seeds)
            )
            parts.append(resampled(run, sets).reindex(methods))
            weights.append(len(own))
        frame = sum(part * weight for part, weight in zip(parts, weights, strict=True)) / sum(weights)
        found = standings(frame)
        print(f"\n{title}:\n{table(found)}", flush=True)
        methods = [name for name in methods if name in (*found.index[:CONFIRMED], *KNOWN)]


if __name__ == "__main__":
    main()
