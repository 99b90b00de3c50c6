"""Own functions as methods: registered by a decorator, from a script or by ``--plugin FILE``.

    import otpt

    @otpt.aggregation
    def median_probability(probabilities):        # (V, C) → (C,)
        median = probabilities.quantile(0.5, dim=0)
        return median / median.sum()

    otpt.load("pocket", "tpt+median-probability")

A function names what it needs as parameters (:data:`otpt.methods.axes.AVAILABLE`). Its name, with hyphens, is then a
part of methods' names like any other.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path
from typing import Any

from otpt.calibration.registry import CALIBRATIONS, calibration
from otpt.errors import OtptError, cannot_read
from otpt.functions import PLUGIN, reason
from otpt.methods.axes import ADAPTATIONS, AGGREGATIONS, GATES, adaptation, aggregation, gate
from otpt.objectives.registry import OBJECTIVES, objective

__all__ = ["adaptation", "aggregation", "calibration", "gate", "load_plugin", "objective"]


def load_plugin(path: str | Path) -> str:
    """Run a user's Python file, whose decorators register what it holds; returns a digest of the file.

    This executes the file: it is for files that the user names on purpose.
    """
    path = Path(path)
    if not path.name.endswith(tuple(SOURCE_SUFFIXES)):  # compiled modules can be imported too, but have no source
        raise OtptError(f"The plugin {str(path)!r} is not a Python file; expected FILE.py.")
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise cannot_read("plugin", path, error) from None
    name = f"{PLUGIN}{digest}"
    if name in sys.modules:
        return digest
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # also if the user interrupts it
        _forget(name)
        if isinstance(error, OtptError) or not isinstance(error, Exception):
            raise
        raise OtptError(f"The plugin {str(path)!r} failed: {reason(error)}.") from error
    return digest


def _forget(module: str) -> None:
    """Take out what a plugin registered before it failed, so that it can be mended and loaded again."""
    del sys.modules[module]
    registries: tuple[dict[str, Any], ...] = (OBJECTIVES, CALIBRATIONS, ADAPTATIONS, AGGREGATIONS, GATES)
    for registry in registries:
        for name in [name for name, each in registry.items() if each.digest and each.function.__module__ == module]:
            del registry[name]
