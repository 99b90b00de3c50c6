"""Bootstrap intervals of the metrics of one run: ``intervals = RunIntervals(run, ["ece", "aurc"], …)``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from otpt.metrics import METRICS, Interval
from otpt.metrics.bootstrap import centred_interval, check_level
from otpt.report.defaults import RESAMPLES
from otpt.report.statistics import all_resampled
from otpt.runs import Rows, Run, read_rows


class RunIntervals:
    """Intervals of ``metrics`` by (method, prompt, data sets), each computed once."""

    def __init__(
        self,
        run: Run,
        metrics: Sequence[str],
        *,
        bins: int,
        side: str,
        level: float,
        resamples: int = RESAMPLES,
        seeds: Collection[int] | None = None,
    ) -> None:
        check_level(level)
        self._seeds = seeds
        self.run, self.metrics = run, tuple(metrics)
        self.bins, self.side, self.level, self.resamples = bins, side, level, resamples
        self._found = cache(self._compute)

    def __call__(self, method: str, prompt: str, datasets: Sequence[str]) -> dict[str, Interval]:
        """Of the mean over the data sets and all chosen seeds that each of them has with this method and prompt."""
        column = (prompt, method)
        seeds = {
            name: [
                seed
                for seed in self.run.seeds_of(name)
                if column in self.run.columns(name, seed) and (self._seeds is None or seed in self._seeds)
            ]
            for name in datasets
        }
        return self._found(column, tuple((name, tuple(own)) for name, own in seeds.items()))

    def of_seed(self, method: str, prompt: str, dataset: str, seed: int) -> dict[str, Interval]:
        """Of one data set and seed."""
        return self._found((prompt, method), ((dataset, (seed,)),))

    def _compute(self, column: tuple[str, str], places: tuple[tuple[str, tuple[int, ...]], ...]) -> dict[str, Interval]:
        rows = [[self._rows(name, seed, column) for seed in seeds] for name, seeds in places]
        found = all_resampled(self.metrics, rows, self.bins, self.side, resamples=self.resamples)
        return {name: centred_interval(*each, self.level, METRICS[name].range) for name, each in found.items()}

    def _rows(self, dataset: str, seed: int, column: tuple[str, str]) -> Rows:
        rows = read_rows(self.run, dataset, seed, column)
        assert rows is not None, "a score was computed from them"
        return rows
