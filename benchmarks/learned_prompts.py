"""CoOp and MaPLe × {none, TPT, C-TPT, O-TPT} on the emoji bench: ``python -m benchmarks.learned_prompts WORK``.

For each of the eight sets and three seeds: learn a prompt of each kind from 16 shots, then evaluate on the test split
with views of the same seed. The table goes to the standard output, and with ``--write`` into
``docs/learned-prompts.md``. Prompts and parts of runs that are there are not made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from otpt.backbones import Backbone, load_backbone
from otpt.data import load_dataset
from otpt.data.emoji.sets import GROUPS
from otpt.evaluation import FeatureCache, Score, Settings, evaluate
from otpt.evaluation.files import write_atomically
from otpt.evaluation.starts import folder_name
from otpt.learning import COOP, MAPLE, train_coop, train_maple
from otpt.metrics import percent
from otpt.prompts.learned import write_learned
from otpt.views import ViewRecipe

SETS = tuple(f"emoji/{group}" for group in GROUPS)
SEEDS = (0, 1, 2)
METHODS = (
    "zero-shot", "tpt", "c-tpt", "o-tpt",
    "coop", "coop+tpt", "coop+c-tpt", "coop+o-tpt",
    "maple", "maple+tpt", "maple+c-tpt", "maple+o-tpt",
)  # fmt: skip
PAGE = Path(__file__).resolve().parent.parent / "docs" / "learned-prompts.md"
_BEGIN, _END = "<!-- learned-prompts -->", "<!-- /learned-prompts -->"


def learn(backbone: Backbone, name: str, seed: int, work: Path, cache: FeatureCache) -> None:
    """The two prompts of a set and seed, unless they are there."""
    data = load_dataset(name, split="train")
    for kind in ("coop", "maple"):
        path = prompt_file(work, kind, folder_name(name), seed)
        if path.exists():
            continue
        if kind == "coop":
            learned = train_coop(backbone, data, replace(COOP, seed=seed), cache=cache)
            data_bytes = write_learned(path, learned)
        else:
            data_bytes = write_learned(path, train_maple(backbone, data, replace(MAPLE, seed=seed)))
        write_atomically(path, data_bytes)
        print(f"learned {path.name}", flush=True)


def prompt_file(work: Path, kind: str, name: str, seed: int) -> Path:
    """Where a learned prompt is; ``name`` may be the pattern ``{dataset}``."""
    return work / "prompts" / f"{kind}-{name}-seed{seed}.safetensors"


def measure(backbone: Backbone, seed: int, work: Path, cache: FeatureCache, views: int) -> list[Score]:
    """All methods on all sets under one seed, each set with its own prompts."""
    contexts = [prompt_file(work, kind, "{dataset}", seed) for kind in ("coop", "maple")]
    settings = Settings(METHODS, seeds=[seed], contexts=contexts, recipe=ViewRecipe(n_views=views))
    found = evaluate([load_dataset(name) for name in SETS], backbone, settings, out=work / f"seed-{seed}", cache=cache)
    print(f"measured seed {seed} in {found.seconds:.0f} s", flush=True)
    return found.scores


def table(scores: Sequence[Score]) -> str:
    """Accuracy and ECE in percent: a row a method, a column a set; the average with its deviation over the seeds."""
    lines = []
    for title, metric in (("accuracy %", "accuracy"), ("ECE %", "ece")):
        names = [name.removeprefix("emoji/") for name in SETS]
        lines += [f"| {title} | {' | '.join(names)} | average |", "|---" * (len(names) + 2) + "|"]
        for method in METHODS:
            own = {(s.dataset, s.seed): getattr(s.metrics, metric) for s in scores if s.method == method}
            cells = [percent(mean(own[name, seed] for seed in SEEDS)) for name in SETS]
            by_seed = [mean(own[name, seed] for name in SETS) for seed in SEEDS]
            cells.append(f"{percent(mean(by_seed))} ± {percent(stdev(by_seed))}")
            lines.append(f"| `{method}` | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Learn, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for prompts, runs and features")
    parser.add_argument("--backbone", default="pocket")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    options = parser.parse_args()
    backbone, cache = load_backbone(options.backbone), FeatureCache(options.work / "features")
    scores: list[Score] = []
    for seed in SEEDS:
        for name in SETS:
            learn(backbone, name, seed, options.work, cache)
        scores += measure(backbone, seed, options.work, cache, options.views)
    text = table(scores)
    print(text)
    if options.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(_BEGIN)
        _, after = rest.split(_END)
        PAGE.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
