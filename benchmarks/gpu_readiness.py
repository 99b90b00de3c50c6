"""``python -m benchmarks.gpu_readiness``: what every method would ask of a GPU, counted on a machine that has none.

Tensors that claim to be on another device (``tests/oracles/elsewhere.py``) compute on the CPU, refuse to mix with the
CPU's, and count. For each method, on a tiny random model and a batch of three images:

- predict, evaluate: how often the host waits for the device per batch, and the kilobytes that are copied to it;
- two devices: whether a second claimed device beside the first gives the same bits;
- CPU: the largest difference of a probability from the CPU's;
- bf16, bf16-both: the largest change of a probability, and changed labels, by ``--precision`` on the CPU. The model is
  random and its logits large: a real one moves less; methods can be compared with each other.

Nothing is timed; a loaded machine gives the same table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paths import TESTS

sys.path.insert(0, str(TESTS))

from oracles.device_bench import ALL, FROZEN, Bench, backbone_on  # type: ignore[import-not-found]
from oracles.elsewhere import DEVICES, claimed_devices  # type: ignore[import-not-found]

HEAD = f"{'method':<22} {'predict':>14} {'evaluate':>14}  two devices  CPU    bf16       bf16-both"


def main() -> None:
    """Print a line per method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", metavar="NAME", default=list(ALL), help="(default: all)")
    options = parser.parse_args()
    print(f"{HEAD}\n{'':<22} {'waits   kB up':>14} {'waits   kB up':>14}", flush=True)
    with tempfile.TemporaryDirectory() as folder, claimed_devices():
        bench = Bench(Path(folder))
        for name in options.methods:
            print(line(bench, name), flush=True)


def line(bench: Any, name: str) -> str:
    """The row of one method."""
    methods, (first, second) = (name,), DEVICES
    answers, counts = {}, {}
    for device in ("cpu", first, second):
        model = bench.model(methods, device)
        predictor = bench.predictor(methods, model)
        if ALL[name].scope == "image":
            bench.predicted(methods, model, predictor)  # what is computed once goes with the first batch
        answers[device], counts[device] = bench.predicted(methods, model, predictor)
    rows = {}
    for device in (first, second):
        where = bench.folder / f"{name} on {device}".replace(":", "-")
        rows[device], counted = bench.evaluated(methods, bench.model(methods, device), where)
    equal = rows[first] == rows[second] and difference(answers[first], answers[second])[0] == 0
    columns = [f"{each.synchronisations:>5} {each.uploaded_bytes / 1000:>8.0f}" for each in (counts[first], counted)]
    deviation = difference(answers["cpu"], answers[first])[0]
    return (
        f"{name:<22} {columns[0]:>14} {columns[1]:>14}  {'same bits' if equal else 'DIFFERENT':<11} {deviation:.0e}"
        f"  {low_precision(bench, methods, answers['cpu'])}"
    )


def low_precision(bench: Any, methods: Sequence[str], expected: Any) -> str:
    """How far bf16 moves probabilities and labels."""
    if methods[0] in FROZEN:
        return "-"
    found = []
    for precision in ("bf16", "bf16-both"):
        model = backbone_on("cpu", precision)
        change, labels = difference(expected, bench.predicted(methods, model, bench.predictor(methods, model))[0])
        found.append(f"{change:.3f} ({labels})")
    return "  ".join(found)


def difference(one: Any, other: Any) -> tuple[float, int]:
    """The largest difference of a probability, and how many labels differ."""
    pairs = [(a[0], b[0]) for a, b in zip(one, other, strict=True)]
    largest = max(float(np.abs(a.probabilities - b.probabilities).max()) for a, b in pairs)
    return largest, sum(a.index != b.index for a, b in pairs)


if __name__ == "__main__":
    main()
