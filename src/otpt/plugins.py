"""Plugins: modules that ship with the package, and users' files.

A user's file (``--plugin FILE``) contains decorated functions, which become parts of method names::

    import otpt

    @otpt.aggregation
    def median_probability(probabilities):        # (V, C) → (C,)
        median = probabilities.quantile(0.5, dim=0)
        return median / median.sum()

    otpt.load("pocket", "tpt+median-probability")

Other entry points: the decorators of :mod:`otpt.registry`, ``otpt.methods.register_methods`` and ``register_kind``,
``otpt.backbones.register_source``, ``otpt.data.register_dataset``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from importlib import import_module
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path
from types import ModuleType

from otpt.errors import OtptError, cannot_read

BUILT_IN = {
    "backbones": ("otpt.medical.medclip",),
    "data": ("otpt.medical.data",),
    "methods": ("otpt.medical.methods", "otpt.tasks.examples", "otpt.tasks.multi_label"),
    "commands": ("otpt.medical",),
    "options": ("otpt.medical.options",),
}
"""Modules by the registry that importing them extends. For the command line, those of "commands" have ``COMMANDS``,
{group: {command: ("module:function", help)}}, and those of "options" have ``Options``, options of an evaluation."""


def import_plugins(registry: str) -> list[ModuleType]:
    """Import the modules that add to a registry."""
    return [import_module(name) for name in BUILT_IN[registry]]


def load_plugin(path: str | Path) -> str:
    """Execute a user's Python file, whose decorators register its functions, and return the file's digest.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "mine.py"
        >>> _ = path.write_text("import otpt\\n\\n@otpt.gate\\ndef never(zero_shot):\\n    return False\\n")
        >>> len(load_plugin(path))
        16
    """
    from otpt.registry import PLUGIN, reason, snapshot  # late: the command line starts without pydantic

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
    restore = snapshot()
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # also KeyboardInterrupt; the file can then be fixed and loaded again
        del sys.modules[name]
        restore()
        if isinstance(error, OtptError) or not isinstance(error, Exception):
            raise
        raise OtptError(f"The plugin {str(path)!r} failed: {reason(error)}.") from error
    return digest
