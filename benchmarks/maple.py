"""TPT+MaPLe with all views within the graph against the selected ones only: ``python -m benchmarks.maple [--quick]``.

ViT-B/16 (ViT-B/32 with ``--quick``) with random weights, 100 classes, J = 3, 64 views of random pixels, one image:
encode, select, gradient, step, predict. Each way runs in a process of its own, so that peak memory means something. The
literal way is the tests' oracle: 77 positions of every class, 64 views within one graph, torch's AdamW.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import torch

from benchmarks.engine import class_names
from benchmarks.paths import TESTS

DEPTH, CLASSES, VIEWS = 3, 100, 64


def measure(way: str, architecture: str) -> dict[str, float]:
    """Seconds and peak memory (GiB) of one image, after the text features are prepared."""
    from otpt.backbones import load_backbone
    from otpt.learning import initial_prompts
    from otpt.methods import get_method

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backbone = load_backbone(f"random:{architecture}", device="cpu")
    prompts = initial_prompts(backbone, depth=DEPTH)
    config = get_method("maple+o-tpt").tuning("fine-grained")
    assert config is not None
    size = backbone.preprocessing.size
    pixels = torch.randn(VIEWS, 3, size, size, generator=torch.Generator().manual_seed(0))
    work: Any
    if way == "engine":
        from otpt.methods.maple import MapleState

        side = MapleState(backbone, class_names(CLASSES), prompts)

        def work() -> None:
            side.tune(side.at_init(pixels), [config])
    else:
        sys.path.insert(0, str(TESTS))
        from oracles.methods.maple import LiteralMaple  # type: ignore[import-not-found]

        oracle = LiteralMaple(backbone.text._model, class_names(CLASSES), prompts.state())

        def work() -> None:
            oracle.tuned(pixels, dict(config.weights), lr=config.learning_rate)

    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def run(quick: bool = False) -> None:
    """Print both ways."""
    architecture = "ViT-B-32" if quick else "ViT-B-16"
    print(f"maple+o-tpt, {architecture}, {CLASSES} classes, {VIEWS} views, float32, one image")
    for way, title in (("literal", "all views within the graph"), ("engine", "selected views only")):
        command = [sys.executable, "-m", "benchmarks.maple", "--way", way, "--architecture", architecture]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{title:28} {found['seconds']:7.1f} s {found['peak']:6.1f} GiB peak", flush=True)


def main() -> None:
    """One measurement in this process (``--way``), or both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--way", choices=("literal", "engine"), help=argparse.SUPPRESS)
    parser.add_argument("--architecture", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options.architecture)))
    else:
        run(options.quick)


if __name__ == "__main__":
    main()
