"""CoOp and MaPLe × {none, TPT, C-TPT, O-TPT} on the emoji bench: ``python -m benchmarks.learned_prompts WORK``.

For each of the eight sets and three seeds: learn a prompt of each kind from 16 shots, evaluate it without tuning on the
whole test split, then with tuning, on as many images as one likes and with views of the same seed. The tables go to
the standard output, and with ``--write`` into ``docs/learned-prompts.md``.

Prompts and shards that are there are not computed again, so it may be stopped and started again, and several
processes may share WORK, each with sets of its own; a last call without ``--sets`` then makes the table::

    python -m benchmarks.learned_prompts WORK --images 100 --sets animals food travel activities &
    python -m benchmarks.learned_prompts WORK --images 100 --sets objects symbols smileys flags & wait
    python -m benchmarks.learned_prompts WORK --images 100 --write
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from benchmarks.pages import put_into
from benchmarks.score_tables import score_table
from otpt.backbones import Backbone, load_backbone
from otpt.data import Dataset, load_dataset
from otpt.data.emoji.sets import GROUPS
from otpt.evaluation import Settings, evaluate
from otpt.features import FeatureCache
from otpt.files import as_json, write_atomically
from otpt.learning import COOP, MAPLE, Recipe, train_coop, train_maple
from otpt.prompts.learned import LearnedPrompt, write_learned
from otpt.runs import Score
from otpt.runs.names import folder_name
from otpt.views import ViewRecipe

SETS = tuple(f"emoji/{group}" for group in GROUPS)
SEEDS = (0, 1, 2)
METHODS = (
    "zero-shot", "tpt", "c-tpt", "o-tpt",
    "coop", "coop+tpt", "coop+c-tpt", "coop+o-tpt",
    "maple", "maple+tpt", "maple+c-tpt", "maple+o-tpt",
)  # fmt: skip
UNTUNED = ("zero-shot", "coop", "maple")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "learned-prompts.md"
PART_SIZE = 16  # images that a killed process may lose
_CHANGEABLE = ("shots", "epochs", "batch", "learning_rate", "crops")


@dataclass(frozen=True)
class Numbers:
    """What decides the table's numbers, besides the model.

    Attributes:
        images: drawn from each test split, the same for all methods and seeds; None takes all.
        views: of an image in tuning.
        coop, maple: how prompts are learned; the seed is that of the views.
    """

    images: int | None = None
    views: int = 64
    coop: Recipe = COOP
    maple: Recipe = MAPLE

    def sentence(self, backbone: str, seeds: Sequence[int]) -> str:
        """How the prompts of both tables were made."""
        ways = [
            f"{title} from {recipe.shots} shots in {recipe.epochs} epochs, batches of {recipe.batch}, lr "
            f"{recipe.learning_rate:g}"
            for title, recipe in (("CoOp", self.coop), ("MaPLe", self.maple))
        ]
        return (
            f"Backbone `{backbone}`; {'; '.join(ways)}. Means over the seeds {', '.join(map(str, seeds))}; the average "
            "with their standard deviation."
        )


@dataclass(frozen=True)
class Bench:
    """A folder of prompts, runs and features, and what they are made with."""

    backbone: Backbone
    work: Path
    numbers: Numbers

    def claim(self) -> None:
        """Note model and numbers in the folder; stop if it was begun with others, whose prompts would be taken."""
        wanted = {"backbone": self.backbone.fingerprint, **asdict(self.numbers)}
        path = self.work / "numbers.json"
        write_atomically(path, as_json(wanted), exclusive=True)
        found = json.loads(path.read_text(encoding="utf-8"))
        other = [f"{name} {found.get(name)}, not {value}" for name, value in wanted.items() if found.get(name) != value]
        if other:
            raise SystemExit(f"{str(self.work)!r} was begun with {'; '.join(other)}: take another folder.")

    def learn(self, name: str, seed: int, cache: FeatureCache) -> None:
        """The two prompts of a set and seed, unless they are there."""
        data = kept(load_dataset(name, split="train"))
        for kind in ("coop", "maple"):
            path = self.prompt_file(kind, folder_name(name), seed)
            if path.exists():
                continue
            started = time.monotonic()
            learned: LearnedPrompt
            if kind == "coop":
                learned = train_coop(self.backbone, data, replace(self.numbers.coop, seed=seed), cache=cache)
            else:
                learned = train_maple(self.backbone, data, replace(self.numbers.maple, seed=seed))
            write_atomically(path, write_learned(path, learned))
            print(f"learned {path.stem} in {time.monotonic() - started:.0f} s", flush=True)

    def prompt_file(self, kind: str, name: str, seed: int) -> Path:
        """Where a learned prompt is; ``name`` may be the pattern ``{dataset}``."""
        return self.work / "prompts" / f"{kind}-{name}-seed{seed}.safetensors"

    def measure(self, name: str, seed: int, cache: FeatureCache, *, tuned: bool) -> list[Score]:
        """Methods with or without tuning on a set under a seed; what was measured before is read."""
        settings = Settings(
            METHODS if tuned else UNTUNED,
            seeds=[seed],
            contexts=[self.prompt_file(kind, "{dataset}", seed) for kind in ("coop", "maple")],
            recipe=ViewRecipe(n_views=self.numbers.views if tuned else 1),
            shard_size=PART_SIZE,
        )
        out = self.work / ("runs" if tuned else "untuned") / f"{folder_name(name)}-seed{seed}"
        dataset = drawn(load_dataset(name), self.numbers.images if tuned else None)
        found = evaluate(dataset, self.backbone, settings, out=out, cache=cache)
        print(f"measured {out.parent.name}/{out.name} in {found.seconds:.0f} s", flush=True)
        return found.scores


def kept(dataset: Dataset) -> Dataset:
    """The data set with its images in memory once they were drawn: every epoch of both trainings takes them."""
    return Dataset(
        dataset.name,
        dataset.class_names,
        dataset.ids,
        dataset.labels,
        lru_cache(maxsize=None)(lambda index: dataset[index].source),
        family=dataset.family,
        augmix=dataset.augmix,
        prompt=dataset.prompt,
        allow_duplicates=dataset.allow_duplicates,
    )


def drawn(dataset: Dataset, count: int | None) -> Dataset:
    """``count`` images from anywhere in the set, the same each time: its first ones are of its first classes."""
    if count is None or count >= len(dataset):
        return dataset
    return dataset.in_order(sorted(random.Random(0).sample(range(len(dataset)), count)))


def changed(recipe: Recipe, given: Sequence[str]) -> Recipe:
    """The recipe with ``NAME=VALUE`` replaced."""
    values = {}
    for item in given:
        name, _, value = item.partition("=")
        if name not in _CHANGEABLE:
            raise SystemExit(f"{item!r} was given; expected NAME=VALUE with one of {', '.join(_CHANGEABLE)}.")
        values[name] = type(getattr(recipe, name))(value)
    return replace(recipe, **values)


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for prompts, runs and features")
    parser.add_argument("--backbone", default="pocket")
    groups = [name.removeprefix("emoji/") for name in SETS]
    parser.add_argument("--sets", nargs="+", choices=groups, default=groups, help="(default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS), help="(default: all)")
    parser.add_argument("--images", type=int, metavar="N", help="of each test split (default: all)")
    parser.add_argument("--views", type=int, default=64, metavar="N", help="(default: 64)")
    for kind in ("coop", "maple"):
        words = f"numbers of the training in place of the published ones: {', '.join(_CHANGEABLE)}"
        parser.add_argument(f"--{kind}", nargs="+", default=[], metavar="NAME=VALUE", help=words)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    options = parser.parse_args(arguments)
    sets = [name for name in SETS if name.removeprefix("emoji/") in options.sets]
    if options.write and (len(sets) < len(SETS) or set(options.seeds) != set(SEEDS)):
        parser.error("--write takes the table of all sets and seeds: leave --sets and --seeds out.")
    numbers = Numbers(options.images, options.views, changed(COOP, options.coop), changed(MAPLE, options.maple))
    bench = Bench(load_backbone(options.backbone), options.work, numbers)
    cache = FeatureCache(options.work / "features")
    bench.claim()
    scores: dict[bool, list[Score]] = {False: [], True: []}
    for seed in options.seeds:
        for name in sets:
            bench.learn(name, seed, cache)
            for tuned, found in scores.items():
                found.extend(bench.measure(name, seed, cache, tuned=tuned))
    count = "all images" if numbers.images is None else f"{numbers.images} images"
    text = "\n\n".join(
        (
            numbers.sentence(options.backbone, options.seeds),
            "Without tuning, on the whole test splits:",
            score_table(scores[False], UNTUNED, sets),
            f"With tuning, {numbers.views} views, on {count} of each test split:",
            score_table(scores[True], METHODS, sets),
        )
    )
    print(text)
    if options.write:
        put_into(PAGE, "learned-prompts", text)


if __name__ == "__main__":
    main()
