"""``python -m benchmarks.gpu_readiness [--write]``: what every method would ask of a GPU, counted where there is none.

Tensors that claim to be on another device (``tests/oracles/devices/elsewhere.py``) compute on the CPU, refuse to mix
with the CPU's, and count. For each method, on a tiny random model and a batch of three images:

- predict, evaluate: how often the host waits for the device per batch, on the first and on the second claimed device;
- up: kilobytes that a prediction copies to the device;
- CPU: the largest difference of a probability from the CPU's, and whether both devices give the same bits;
- bf16, bf16-both, fp16-both: the largest change of a probability, and how many labels change, by ``--precision`` on the
  CPU. The model is random and its logits large; what counts is how methods compare.

Then the exceptions: views in rounds, a cold and a warm cache, frozen classes. Nothing is timed; a loaded machine gives
the same table. ``--write`` puts it into ``docs/gpu.md``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import put_into
from benchmarks.paths import TESTS

sys.path.insert(0, str(TESTS))

from oracles.devices.device_bench import ALL, FROZEN, Bench, backbone_on  # type: ignore[import-not-found]
from oracles.devices.elsewhere import DEVICES, claimed_devices  # type: ignore[import-not-found]

from otpt.features import FeatureCache
from otpt.methods import get_method
from otpt.views import ViewRecipe

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gpu.md"
LOW = ("bf16", "bf16-both", "fp16-both")
HEAD = ("method", "predict", "evaluate", "up, kB", "CPU", *LOW)


def main() -> None:
    """Print a line per method, and one per exception."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", metavar="NAME", default=list(ALL), help="(default: all)")
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, claimed_devices():
        bench = Bench(Path(folder))
        methods = list(shown(HEAD, (row(bench, name) for name in options.methods)))
        exceptions = list(shown(("what", "methods", "waits"), exceptional(bench)))
    if options.write:
        put_into(PAGE, "methods", "\n".join(methods))
        put_into(PAGE, "exceptions", "\n".join(exceptions))


def shown(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """Lines of a table in Markdown, printed as they come."""
    for cells in chain([head, ["---"] * len(head)], rows):
        line = f"| {' | '.join(cells)} |"
        print(line, flush=True)
        yield line


def row(bench: Any, name: str) -> list[str]:
    """What is known of one method."""
    methods = (name,)
    answers: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    evaluated: dict[str, Any] = {}
    for device in ("cpu", *DEVICES):
        model = bench.model(methods, device) if name in FROZEN else tiny(device)
        answers[device], asked[device] = bench.predicted(methods, model, bench.predictor(methods, model))
        if device != "cpu":
            folder = bench.folder / f"{name} on {device}".replace(":", "-")
            rows[device], evaluated[device] = bench.evaluated(methods, model, folder)
    one, two = DEVICES
    same = difference(answers[one], answers[two])[0] == 0 and str(rows[one]) == str(rows[two])
    waits = [", ".join(str(each[device].synchronisations) for device in DEVICES) for each in (asked, evaluated)]
    deviation = f"{difference(answers['cpu'], answers[one])[0]:.0e}{'' if same else ', DEVICES DIFFER'}"
    return [f"`{name}`", *waits, f"{asked[one].uploaded_bytes / 1000:.0f}", deviation, *low_precision(bench, name)]


def low_precision(bench: Any, name: str) -> list[str]:
    """How far low precision moves probabilities and labels."""
    if name in FROZEN:
        return ["–"] * len(LOW)
    plain, *low = (answers_in(bench, name, precision) for precision in ("float32", *LOW))
    return [change(plain, each) for each in low]


def answers_in(bench: Any, name: str, precision: str) -> Any:
    """The answers of a method on the CPU, image by image."""
    model = tiny("cpu", precision)
    return bench.predicted((name,), model, bench.predictor((name,), model))[0]


@cache
def tiny(device: str, precision: str = "float32") -> Any:
    """The tiny model, made once."""
    return backbone_on(device, precision)


def exceptional(bench: Any) -> Iterator[list[str]]:
    """What asks more often: per batch of three images."""
    one = DEVICES[0]
    for rounds in ((3,), (3, 6)):
        recipe = ViewRecipe(n_views=12, rounds=rounds)
        folder = bench.folder / f"rounds {len(rounds)}"
        _, counts = bench.evaluated(("zero-shot", "tpt"), tiny(one), folder, recipe=recipe)
        yield [f"`--budget`: views in {len(rounds) + 1} rounds", "`zero-shot tpt`", str(counts.synchronisations)]
    for turn in ("cold", "warm"):
        cache = FeatureCache(bench.folder / "cache")
        _, counts = bench.evaluated(("zero-shot", "tpt"), tiny(one), bench.folder / turn, cache=cache)
        yield [f"a {turn} cache of features and gradients", "`zero-shot tpt`", str(counts.synchronisations)]
    frozen = [get_method("tpt").override({"frozen-below": 0.02})]
    _, counts = bench.evaluated(("tpt",), tiny(one), bench.folder / "frozen", methods=frozen)
    yield ["`--set frozen-below=0.02`: texts of each image's own classes", "`tpt`", str(counts.synchronisations)]


def difference(one: Any, other: Any) -> tuple[float, int]:
    """The largest difference of a probability, and how many labels differ."""
    pairs = [(a[0], b[0]) for a, b in zip(one, other, strict=True)]
    largest = max(float(np.abs(a.probabilities - b.probabilities).max()) for a, b in pairs)
    return largest, sum(a.index != b.index for a, b in pairs)


def change(one: Any, other: Any) -> str:
    """For a cell."""
    largest, labels = difference(one, other)
    return f"{largest:.4f}" + (f" ({labels} of {len(one)})" if labels else "")


if __name__ == "__main__":
    main()
