"""Tiny run folders for the tests of figures and page: a random CLIP, a few images of three sets, few views."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from oracles.models.tiny import open_clip_local_dir, tiny_backbone
from PIL import Image

from otpt.backbones import Backbone, load_backbone
from otpt.data import load_dataset
from otpt.evaluation import EvaluationSettings, evaluate, sweep_method
from otpt.methods import get_method
from otpt.prompts import Prompt
from otpt.report import Results, open_results
from otpt.views import ViewRecipe

NAMES = ("cat", "dog", "pug", "sea")
METHODS = ("zero-shot", "tpt", "c-tpt", "o-tpt", "tpt+ts")
PROMPTS = ("a photo of a", "an example of", "an image of the", "a drawing of a")
SETS = ("first", "second", "third")
EACH = 3
"""Images of a class."""
BINS = 10


@dataclass(frozen=True)
class Bench:
    """Where everything is: the runs by name, the data, the model."""

    runs: dict[str, Path]
    data: Path
    model: str

    def results(self, *names: str) -> Results:
        return open_results([self.runs[name] for name in names or ("main",)])


@cache
def backbone() -> Backbone:
    """For configurations of simulated runs."""
    return tiny_backbone("vit")


def make_bench(folder: Path) -> Bench:
    """The runs that all figures together need, each as a command of ``otpt`` would make it."""
    for s, name in enumerate(SETS):
        for c, label in enumerate(NAMES):
            for i in range(EACH):
                path = folder / "data" / name / label / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                values = np.random.default_rng([s, c, i]).integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(values).resize((36, 32), Image.Resampling.BICUBIC).save(path)
    open_clip_local_dir(folder / "model")
    spec = f"local-dir:{folder / 'model'}"
    small = {"views": ViewRecipe(n_views=6), "shard_size": 5, "n_bins": BINS}
    sets = [load_dataset(name, root=folder / "data") for name in SETS]
    sweep = sweep_method(get_method("o-tpt"), {"lambda": ["0", "18", "2"]})
    gentle = get_method("o-tpt").override({"lambda": 6, "steps": 2})
    every = {
        "main": (sets, EvaluationSettings(methods=METHODS, **small)),
        "seeds": (sets[:2], EvaluationSettings(methods=("tpt", "o-tpt"), seeds=(0, 1), **small)),
        "sweep": (sets[:2], EvaluationSettings(methods=sweep, **small)),
        "prompts": (sets[:2], EvaluationSettings(methods=("zero-shot",), prompts=PROMPTS, **small)),
        "changed": (
            sets[:1],
            EvaluationSettings(
                methods=(gentle,),
                prompts=[Prompt("an example of", tokens=2)],
                augmix=False,
                family="shift",
                limit=2,
                official_precision=True,
                **small,
            ),
        ),
    }
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model = load_backbone(spec, device="cpu")
    try:
        for name, (data, settings) in every.items():
            evaluate(data, model, settings, out=folder / name)
    finally:
        torch.set_num_threads(before)
    return Bench({name: folder / name for name in every}, folder / "data", spec)
