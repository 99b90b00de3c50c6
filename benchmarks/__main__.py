"""``python -m benchmarks [--quick]``: view encoding, the engine against the literal way, latency, evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks import encoding, engine, evaluation, latency


def _latency(quick: bool) -> None:
    latency.run()


def main() -> None:
    """Run all benchmarks, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller cases, within five minutes on two cores")
    options = parser.parse_args()
    parts: list[tuple[str, Callable[[bool], None]]] = [("View encoding", encoding.run), ("The engine", engine.run)]
    if not options.quick:
        parts += [("Latency", _latency), ("Evaluation", evaluation.run)]
    for title, benchmark in parts:
        print(f"\n== {title}\n", flush=True)
        benchmark(options.quick)


if __name__ == "__main__":
    main()
