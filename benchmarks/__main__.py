"""``python -m benchmarks [--quick]``: views, view encoding, the engine against the literal way, evaluation at scale."""

from __future__ import annotations

import argparse

from benchmarks import encoding, engine, evaluation, views


def main() -> None:
    """Run all benchmarks, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller cases, within five minutes on two cores")
    options = parser.parse_args()
    parts = [("Views", views), ("View encoding", encoding), ("The engine", engine)]
    if not options.quick:
        parts.append(("Evaluation", evaluation))  # alone: python -m benchmarks.evaluation --quick
    for title, benchmark in parts:
        print(f"\n== {title}\n", flush=True)
        benchmark.run(options.quick)


if __name__ == "__main__":
    main()
