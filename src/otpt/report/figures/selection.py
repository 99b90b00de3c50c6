"""What of the results a figure shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from otpt.errors import OtptError
from otpt.report.layouts import plain_methods, selected
from otpt.report.results import FEW, ResultKey, Results
from otpt.runs import Rows


@dataclass(frozen=True)
class Selection:
    """Data sets and methods of results, and the prompt; None takes the first of each data set and method.

    Figures of metrics show the mean over seeds; figures of single images show the first seed.
    """

    results: Results
    datasets: list[str]
    methods: list[str]
    prompt: str | None = None

    def prompt_of(self, dataset: str, method: str) -> str:
        """The prompt under which a method is shown on a data set."""
        held = self.results.prompts_of(dataset, method)
        return held[0] if self.prompt is None and held else self.prompt or ""

    def key(self, dataset: str, method: str) -> ResultKey:
        """The images of a method on a data set under the first seed."""
        return ResultKey(dataset, self.results.seeds[0], self.prompt_of(dataset, method), method)

    def rows(self, dataset: str, method: str) -> Rows:
        """The images under the first seed."""
        return self.results.rows(self.key(dataset, method))

    @property
    def frame(self) -> pd.DataFrame:
        """Rows of the frame that are shown; :class:`OtptError` if a method lacks a data set."""
        parts = []
        for dataset in self.datasets:
            for method in self.methods:
                prompt = self.prompt_of(dataset, method)
                own = self.results.select(dataset=dataset, method=method, prompt=prompt)
                if own.empty or not own["images"].all():
                    raise OtptError(
                        f"The runs hold no images of {method!r} on {dataset!r} with the prompt {prompt!r}; choose "
                        "others with --datasets, --methods or --prompt."
                    )
                parts.append(own)
        return pd.concat(parts)

    def mean(self, metric: str) -> pd.DataFrame:
        """Means over seeds: methods down, data sets across."""
        found = self.frame.pivot_table(metric, "method", "dataset", aggfunc="mean")
        return found.loc[self.methods, self.datasets]

    def deviation(self, metric: str) -> pd.DataFrame:
        """Sample standard deviations over seeds, nan with one, of each data set and of their average."""
        frame = self.frame
        found = frame.pivot_table(metric, "method", "dataset", aggfunc="std", dropna=False)
        found = found.reindex(index=self.methods, columns=self.datasets)
        average = frame.groupby(["method", "seed"])[metric].mean().groupby("method").std()
        return found.assign(average=average)

    def note(self, *, one_seed: bool = False, bins: bool = True, ece: bool = False) -> str:
        """What a reader must know: seeds, bins, and a caution about ``ece`` of few images."""
        seeds = self.results.seeds[:1] if one_seed else self.results.seeds
        words = [f"seed {seeds[0]}" if len(seeds) == 1 else f"mean over seeds {', '.join(map(str, seeds))}"]
        words += [f"{self.results.n_bins} bins"] if bins else []
        least = min(self.results.images_of(dataset) for dataset in self.datasets)
        if ece and least < FEW:
            words.append(f"fewer than {FEW} images of a data set ({least} here): most of an ECE may be bias")
        words += [f"run in progress, {done} of {total} images" for _, done, total in self.results.progress]
        return "; ".join(words)


def select(
    results: Results,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    prompt: str | None = None,
    usual: Sequence[str] = (),
) -> Selection:
    """What was asked for, or everything; of the ``usual`` methods those that the runs have, or all plain ones."""
    if prompt is not None:
        selected("prompt", [prompt], results.prompts)
    known = [name for name in usual if name in results.methods] or plain_methods(results.methods) or results.methods
    return Selection(
        results,
        results.datasets if datasets is None else selected("data set", datasets, results.datasets),
        list(known) if methods is None else selected("method", methods, results.methods),
        prompt,
    )
