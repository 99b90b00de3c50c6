"""What of the results a figure shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING

from otpt.errors import OtptError
from otpt.report.defaults import FEW
from otpt.report.names import check_names
from otpt.report.sweeps import variant

if TYPE_CHECKING:
    from otpt.metrics import Metrics
    from otpt.report.results import ResultKey, Results
    from otpt.runs import Rows


@dataclass(frozen=True)
class Selection:
    """Data sets, methods and seeds of the results, and the prompt.

    Figures of metrics show the mean over ``seeds``; figures of single images show the first of them.

    Attributes:
        prompt: None takes the first of each data set and method: one that starts from a learned prompt has its own.
    """

    results: Results
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    prompt: str | None = None

    def prompt_of(self, dataset: str, method: str) -> str:
        """The prompt under which a method is shown on a data set."""
        held = self.results.prompts_of(dataset, method)
        return held[0] if self.prompt is None and held else self.prompt or ""

    def key(self, dataset: str, method: str, seed: int | None = None, prompt: str | None = None) -> ResultKey:
        """What is shown of a method on a data set."""
        from otpt.report.results import ResultKey

        seed = self.seeds[0] if seed is None else seed
        return ResultKey(dataset, seed, self.prompt_of(dataset, method) if prompt is None else prompt, method)

    def rows(self, dataset: str, method: str) -> Rows:
        """The images of the first seed; there is at least one."""
        key = self.key(dataset, method)
        rows = self.results.rows(key)
        if not len(rows):
            raise _empty(key)
        return rows

    def metrics(self, dataset: str, method: str, seed: int | None = None, prompt: str | None = None) -> Metrics:
        """All metrics under one seed."""
        key = self.key(dataset, method, seed, prompt)
        score = self.results.score(key)
        if score is None:
            raise OtptError(
                f"The runs hold no {key.method!r} on {key.dataset!r} with seed {key.seed} and the prompt "
                f"{key.prompt!r}; choose others with --datasets, --methods, --seeds or --prompt."
            )
        if score.metrics is None:
            raise _empty(key)
        return score.metrics

    def mean(self, metric: str, dataset: str, method: str, prompt: str | None = None) -> float:
        """A metric, averaged over the seeds."""
        return mean(getattr(self.metrics(dataset, method, seed, prompt), metric) for seed in self.seeds)

    def deviation(self, metric: str, datasets: Sequence[str], method: str) -> float | None:
        """Sample standard deviation over the seeds of a metric's mean over data sets; None with one seed."""
        means = [mean(getattr(self.metrics(each, method, seed), metric) for each in datasets) for seed in self.seeds]
        return stdev(means) if len(means) > 1 else None

    def note(self, *, one_seed: bool = False, bins: bool = True, ece: bool = False) -> str:
        """What a reader must know and the axes do not say.

        Args:
            one_seed: the figure shows the first seed only.
            bins: something in the figure is computed with bins.
            ece: the figure shows values of an ECE, so that few images need a warning.
        """
        seeds = self.seeds[:1] if one_seed else self.seeds
        words = [f"seed {seeds[0]}" if len(seeds) == 1 else f"mean over seeds {', '.join(map(str, seeds))}"]
        words += [f"{self.results.bins} bins"] if bins else []
        least = min(self.results.images_of(dataset) for dataset in self.datasets)
        if ece and least < FEW:
            words.append(f"fewer than {FEW} images of a data set ({least} here): most of an ECE may be bias")
        words += [f"run in progress, {done} of {total} images" for _, done, total in self.results.partial]
        return "; ".join(words)


def select(
    results: Results,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    prompt: str | None = None,
    usual: Callable[[Sequence[str]], list[str]] | None = None,
) -> Selection:
    """What was asked for, or everything; :class:`OtptError` for a name that the runs do not hold.

    Args:
        usual: from the methods of the runs to those that are shown by default.
    """
    check_names("data set", datasets, results.datasets)
    check_names("method", methods, results.methods)
    check_names("prompt", None if prompt is None else [prompt], results.prompts)
    check_names("seed", map(str, seeds or ()), [str(seed) for seed in results.seeds])
    shown = methods or (usual or ordinary)(results.methods) or results.methods
    return Selection(results, tuple(datasets or results.datasets), tuple(shown), tuple(seeds or results.seeds), prompt)


def ordinary(methods: Sequence[str]) -> list[str]:
    """Methods that are not the variants of a sweep."""
    return [name for name in methods if variant(name) is None]


def _empty(key: ResultKey) -> OtptError:
    return OtptError(f"No image of {key.dataset!r} with seed {key.seed} has been predicted yet, or none could be read.")
