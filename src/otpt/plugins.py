"""Plugins: installed packages and user files.

An installed package names a module in its entry points, in the group ``otpt.plugins``::

    [project.entry-points."otpt.plugins"]
    mine = "my_package.otpt_plugin"

The module is imported when an unknown method, data set or model is looked up, or all are listed. Its decorators
register objectives, adaptations, calibrators, aggregations, gates (:mod:`otpt.registry`), inits and systems (``otpt.methods.register_init``,
``register_system``), data sets (``otpt.data.register_dataset``) and sources of models
(``otpt.backbones.register_source``). A variable ``COMMANDS`` of the module's package adds commands: {group: {command:
("module:function", help)}}.

A user file (``--plugin FILE``) defines decorated functions, whose names become parts of method names::

    import otpt

    @otpt.aggregation
    def median_probability(probabilities):        # (V, C) → (C,)
        median = probabilities.quantile(0.5, dim=0)
        return median / median.sum()

    otpt.load("pocket", "tpt+median-probability")
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import warnings
from importlib.machinery import SOURCE_SUFFIXES
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from otpt.errors import OtptError, cannot_read
from otpt.registry import PLUGIN, reason, snapshot

GROUP = "otpt.plugins"
"""Group of entry points."""


def installed_plugins() -> list[EntryPoint]:
    """Return the entry points of installed plugins, by name."""
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


_imported: set[str] = set()


def load_installed_plugins() -> bool:
    """Import the installed plugins that are not imported yet; return whether there were any.

    Look-ups call it for an unknown name and before listing all names. A plugin that fails is reported and left out.
    """
    points = [point for point in installed_plugins() if point.name not in _imported]
    for point in points:
        _imported.add(point.name)  # before its import, which may look names up
        restore = snapshot()
        try:
            point.load()
        except Exception as error:
            restore()
            warnings.warn(f"The plugin {point.name!r} ({point.value}) failed: {reason(error)}.", stacklevel=2)
    return bool(points)


def load_plugin(path: str | Path) -> str:
    """Execute a Python file, whose decorators register its functions, and return the digest of the file.

    Example:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "mine.py"
        >>> _ = path.write_text("import otpt\\n\\n@otpt.gate\\ndef never(zero_shot):\\n    return False\\n")
        >>> len(load_plugin(path))
        16
    """
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
