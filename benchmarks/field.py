"""All methods side by side: ``python -m benchmarks.field WORK [--photographs FOLDER --model DIR] [--write]``.

Every method of the field on the thirteen emoji sets with ``pocket``, three seeds of the views; and, if given, on
photographs (``FOLDER/caltech101``, ``FOLDER/eurosat``, each with ``classes.txt``) with another model. One recipe of
views, that of the data set, for all methods, so that they share it. Stream methods run over five orders (seeds).

A cell is the average over the data sets, and half of a 95 % interval: 1.96 standard errors of a bootstrap over the
images of each set, the same images for all methods. Seconds are those of one image on one thread once its views are
encoded. The runs grow: stopped, it goes on where it was. ``--write`` puts the tables into ``docs/field.md``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import measure, model_on
from benchmarks.pages import put_into
from otpt.data import Dataset, load_dataset
from otpt.data.emoji import GROUPS, SHIFTS
from otpt.errors import OtptError
from otpt.evaluation import EvaluationSettings
from otpt.features import FeatureCache, FeaturePipeline
from otpt.methods import Method, Predictor, get_method
from otpt.methods.batch import Batch
from otpt.registry import FPP, STREAM
from otpt.report.statistics import resample
from otpt.runs import Rows, Run, read_rows
from otpt.threads import one_thread
from otpt.views import ViewRecipe

Floats = npt.NDArray[np.float64]

SEEDS, ORDERS = (0, 1, 2), (0, 1, 2, 3, 4)
IMAGES = 270  # of each set: every class of every set at least once
RESAMPLES = 1000
PAGE = Path(__file__).resolve().parent.parent / "docs" / "field.md"
PHOTOGRAPHS = ("caltech101", "eurosat")

METHODS = (
    "zero-shot", "tpt", "c-tpt", "o-tpt", "tpt+sals", "tpt+penalty",
    "a-tpt", "a-tpt-released", "soc", "d-tpt", "o-tpt+static", "soc+static",
    "tpt+cots", "tpt+e-cots", "o-tpt+cots", "o-tpt+e-cots", "a-tpt+e-cots", "soc+e-cots", "tpt+cor", "tpt+dac",
    "zero-shot+weak-strong", "o-tpt+weak-strong", "soc+static+weak-strong", "se", "use",
    "tpt+agreement", "tpt+cas", "tpt+agreement+e-cots",
    "mean-probability", "confident-half", "mean-logit", "mean-feature", "tpt+mean-probability",
    "zero", "mta", "tps", "tps+e-cots", "sts", "r-tpt", "reliability", "rlcf",
    "templates-7", "templates-7+weak-strong", "fpp", "fpp+tpt", "boost",
)  # fmt: skip
STREAMS = ("tda", "boostadapter", "dmn", "bca", "dpe")


COLUMNS = {
    "accuracy": ("accuracy %", 100.0, 1),
    "ece": ("ECE %", 100.0, 1),
    "debiased_ece": ("debiased ECE %", 100.0, 1),
    "nll": ("NLL", 1.0, 3),
    "aurc": ("AURC %", 100.0, 1),
}
"""By metric: its title, what values are multiplied by, and digits."""

Cells = dict[str, tuple[float, Floats]]
"""Of one method by metric: the average over sets, and the same of resampled images (R,)."""


def summarise(run: Run, method: str, seeds: Sequence[int], datasets: Sequence[str]) -> Cells:
    """Seeds are averaged per set, then the sets; every seed and method sees the same resamples of a set's images."""
    rows = [[_rows(run, dataset, seed, method) for seed in seeds] for dataset in datasets]
    found = resample(list(COLUMNS), rows, 20, "right", resamples=RESAMPLES)
    return {metric: (each.estimate, each.values) for metric, each in found.items()}


def _rows(run: Run, dataset: str, seed: int, method: str) -> Rows:
    (column,) = (each for each in run.columns(dataset) if each[1] == method)
    rows = read_rows(run, dataset, seed, column)
    if rows is None:
        raise OtptError(f"The run {str(run.folder)!r} has no rows of {method} on {dataset}; run it first.")
    return rows


def table(cells: dict[str, Cells], seconds: dict[str, float], needs: Callable[[str], str]) -> str:
    """Markdown, a row per method."""
    titles = ["method", *(title for title, _, _ in COLUMNS.values()), "ms per image", "needs"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for method, own in cells.items():
        shown = []
        for metric, (_, scale, digits) in COLUMNS.items():
            value, resampled = own[metric]
            half = 1.96 * float(np.std(resampled, ddof=1))
            shown.append(f"{scale * value:.{digits}f} ± {scale * half:.{digits}f}")
        took = f"{1000 * seconds[method]:.1f}" if method in seconds else "–"
        lines.append(f"| `{method}` | {' | '.join(shown)} | {took} | {needs(method)} |")
    return "\n".join(lines)


def needed(name: str) -> str:
    """What a method needs beyond one view: views, gradients, the text tower per image, state, templates, or a context
    that is trained for the class list."""
    method = get_method(name)
    words = [
        ("views", method.needs_views("fine-grained")),
        ("gradient", method.tunes or method.adapt in ("tps", "sts", "dpe")),
        ("text tower", method.tunes and method.needs_views("fine-grained")),
        ("state", method.scope == STREAM),
        ("templates", method.init.startswith("templates")),
        ("training", method.init in FPP),
    ]
    return ", ".join(word for word, holds in words if holds) or "–"


def seconds_per_image(model: str, dataset: Dataset, methods: Sequence[str], cache_: FeatureCache) -> dict[str, float]:
    """Of one thread, once the views are encoded; the median over 12 images."""
    backbone = model_on(model)("cpu")
    found = {}
    for name in methods:
        method = get_method(name)
        settings = EvaluationSettings([method], limit=12)
        predictor = Predictor(backbone, settings.task_for(dataset), [method])
        tasks = (predictor.task(i, partial(dataset.source, i), seed=0) for i in range(13))
        encoded = [image for _, image in FeaturePipeline(backbone, cache=cache_)(tasks)]
        moments = []
        with one_thread():
            for image in encoded:
                began = time.perf_counter()
                predictor(Batch([image], 0))  # type: ignore[list-item]
                moments.append(time.perf_counter() - began)
        found[name] = float(np.median(moments[1:]))
    return found


@dataclass(frozen=True)
class Bench:
    """Data sets that are measured with one model: the images of each, None for all."""

    name: str
    model: str
    makers: list[partial[Dataset]]
    images: int | None

    def of(self, names: Sequence[str]) -> Bench:
        """Some of the data sets only, by their names without the bench's."""
        return replace(self, makers=[make for make in self.makers if Path(make().name).name in names])

    def measure(
        self,
        options: argparse.Namespace,
        methods: Sequence[str | Method],
        seeds: Sequence[int],
        *,
        recipe: ViewRecipe | None = None,
        name: str = "",
    ) -> Run:
        """The run of these methods and seeds, once what is missing was measured; ``name``: another than the bench's."""
        folder = options.work / (name or self.name)
        settings = EvaluationSettings(methods, seeds=tuple(seeds), limit=self.images, views=recipe or ViewRecipe())
        measure(self.model, self.makers, settings, folder, options.workers, feature_cache(options))
        return Run(folder)


def benches(options: argparse.Namespace) -> list[Bench]:
    """The emoji sets, and the photographs if they are given."""
    makers = [partial(load_dataset, f"emoji/{name}") for name in options.sets]
    found = [Bench("emoji", "pocket", makers, options.images)]
    if options.photographs is not None:
        makers = photographs(options.photographs)
        found.append(Bench("photographs", f"local-dir:{options.model}", makers, options.photograph_images))
    return found


def photographs(folder: Path) -> list[partial[Dataset]]:
    """The sets of photographs in a folder."""
    return [partial(load_dataset, str(folder / name), classes=folder / name / "classes.txt") for name in PHOTOGRAPHS]


def feature_cache(options: argparse.Namespace) -> FeatureCache:
    """Of all benches."""
    return FeatureCache(options.work / "cache", max_bytes=30 << 30)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What a measurement of methods on these benches asks for."""
    parser.add_argument("work", type=Path, help="a folder for the runs and the feature cache")
    parser.add_argument("--photographs", type=Path, help="a folder with caltech101/ and eurosat/")
    parser.add_argument("--model", type=Path, help="an open_clip folder, for the photographs")
    parser.add_argument("--sets", nargs="+", default=GROUPS + SHIFTS, metavar="NAME", help="of the emoji bench")
    parser.add_argument("--images", type=int, default=IMAGES, help="of each emoji set (default: %(default)s)")
    parser.add_argument("--photograph-images", type=int, metavar="N", help="of each set of photographs (default: all)")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="of the views (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")


def main() -> None:
    """Measure what is missing, then print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="NAME", help="in place of the page's")
    parser.add_argument("--streams", nargs="*", default=STREAMS, metavar="NAME", help="in place of the page's")
    parser.add_argument("--orders", type=int, default=len(ORDERS), help="of streams (default: %(default)s)")
    options = parser.parse_args()
    seeds, orders = tuple(range(options.seeds)), tuple(range(options.orders))
    for bench in benches(options):
        run = bench.measure(options, options.methods, seeds)
        if options.streams:
            run = bench.measure(options, options.streams, orders)
        datasets = [make().name for make in bench.makers]
        cells = {each: summarise(run, each, seeds, datasets) for each in options.methods}
        cells |= {each: summarise(run, each, orders, datasets) for each in options.streams}
        timed = partial(
            seconds_per_image,
            bench.model,
            bench.makers[0](),
            [*options.methods, *options.streams],
            feature_cache(options),
        )
        seconds = _kept(run.folder / "seconds.json", timed)
        count = "all images" if bench.images is None else f"{bench.images} images"
        many = f"{len(datasets)} sets, {count} of each; seeds of the views {seeds}; orders of the streams {orders}"
        text = f"{many}\n\n{table(cells, seconds, needed)}"
        print(f"\n{bench.name}: {text}", flush=True)
        if options.write:
            put_into(PAGE, bench.name, text)


def _kept(path: Path, made: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Measured once on a quiet machine, then read back."""
    if not path.exists():
        path.write_text(json.dumps(made(), indent=1) + "\n", encoding="utf-8")
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()
