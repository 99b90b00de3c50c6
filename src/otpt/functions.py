"""Functions of score and map registries, called by the names of their parameters."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from otpt.registry import parameters

__all__ = ["call_with", "parameters", "resolve"]


def resolve(source: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of "module:name"; a function is returned unchanged."""
    if not isinstance(source, str):
        return source
    module, _, name = source.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def call_with(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a function with the arguments that its parameters name."""
    return function(**{name: given[name] for name in parameters(function) if name in given})
