"""The embedded model, loaded once per process."""

from __future__ import annotations

from functools import cache

from otpt import load_backbone
from otpt.backbones import Backbone


@cache
def pocket() -> Backbone:
    return load_backbone("pocket", device="cpu")
