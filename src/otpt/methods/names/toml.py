"""TOML, of Python's own library or of its forerunner for Python 3.10."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class TomlError(ValueError):
    """A text that is not TOML; says where and why."""


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a text; :class:`TomlError` if it is not TOML."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TomlError("it is nested too deeply") from None
    except ValueError as error:  # also for a number that Python does not read
        raise TomlError(str(error)) from None


@cache
def methods_table() -> Mapping[str, Any]:
    """``methods.toml``: the parts of names and their numbers."""
    return read_toml(resources.files("otpt.methods").joinpath("methods.toml").read_text(encoding="utf-8"))
