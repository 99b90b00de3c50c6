"""The table of methods, ``methods.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from otpt.files import parse_toml


@cache
def methods_table() -> Mapping[str, Any]:
    """The parts of names and their numbers."""
    return parse_toml(resources.files("otpt.methods").joinpath("methods.toml").read_text(encoding="utf-8"))
