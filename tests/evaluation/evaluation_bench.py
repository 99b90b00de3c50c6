"""A small evaluation for tests: a tiny CLIP, a handful of pictures, few views."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from oracles.models import tiny_backbone
from PIL import Image

from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.evaluation import Settings
from otpt.views import PictureSource, ViewRecipe

NAMES = ("cat", "dog", "red panda", "sea", "2012 BMW M3 coupe", "pug")
METHODS = ("zero-shot", "tpt", "o-tpt", "tpt+sals")
RECIPE = ViewRecipe(n_views=12)
LONG_AGO = 1_700_000_000


@cache
def backbone() -> Backbone:
    return tiny_backbone("vit")


def backbone_on(device: str) -> Backbone:
    """For worker processes, which are sent a name."""
    return backbone()


def picture(seed: int) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((48, 40), Image.Resampling.BICUBIC)


def write_pictures(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03d}.png" for i in range(count)]
    for i, path in enumerate(paths):
        picture(i).save(path)
        os.utime(path, (LONG_AGO, LONG_AGO))
    return paths


def dataset(count: int = 10, name: str = "tiny", pictures: list[Any] | None = None) -> Dataset:
    """Pictures in memory, or those given (paths, bytes, images)."""
    sources: list[PictureSource] = pictures if pictures is not None else [picture(i) for i in range(count)]
    return Dataset(
        name,
        NAMES,
        ids=[f"p/{i}" for i in range(len(sources))],
        labels=[i % len(NAMES) for i in range(len(sources))],
        pictures=sources.__getitem__,
    )


def small_dataset() -> Dataset:
    """For worker processes."""
    return dataset(9)


def settings(**changes: Any) -> Settings:
    return Settings(**{"methods": METHODS, "recipe": RECIPE, "part_size": 4, **changes})


def files(folder: Path, *, suffix: str = "") -> dict[str, bytes]:
    """All files of a run by name, without its claims."""
    found = (path for path in sorted(folder.rglob(f"*{suffix}")) if path.is_file() and path.name != "claims.lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
