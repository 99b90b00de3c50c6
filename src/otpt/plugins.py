"""Plugins: built-in modules and user files.

A user file (``--plugin FILE``) defines decorated functions, whose names become parts of method names::

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
"""Built-in modules by the registry that they extend on import. Modules of "commands" define ``COMMANDS``, {group:
{command: ("module:function", help)}}; modules of "options" define ``Options``, command line options of evaluations."""


def import_plugins(registry: str) -> list[ModuleType]:
    """Import and return the built-in modules that extend a registry."""
    return [import_module(name) for name in BUILT_IN[registry]]


def load_plugin(path: str | Path) -> str:
    """Execute a Python file, whose decorators register its functions, and return the digest of the file.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "mine.py"
        >>> _ = path.write_text("import otpt\\n\\n@otpt.gate\\ndef never(zero_shot):\\n    return False\\n")
        >>> len(load_plugin(path))
        16
    """
    from otpt.registry import PLUGIN, reason, snapshot  # imports pydantic, which the command line avoids at startup

    path = Path(path)
    if not path.name.endswith(tuple(SOURCE_SUFFIXES)):  # compiled modules are not supported
        raise OtptError(f"The plugin {str(path)!r} is not a Python file; expected FILE.py.")
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except (OSError, ValueError) as error:  # ValueError: null character in the path
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
    except BaseException as error:  # also KeyboardInterrupt: undo everything, so that the file can be loaded again
        del sys.modules[name]
        restore()
        if isinstance(error, OtptError) or not isinstance(error, Exception):
            raise
        raise OtptError(f"The plugin {str(path)!r} failed: {reason(error)}.") from error
    return digest
