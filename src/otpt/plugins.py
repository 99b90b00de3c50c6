"""Plugins: installed packages and user files.

An installed package names modules and commands in its entry points::

    [project.entry-points."otpt.plugins"]
    mine = "my_package.otpt_plugin"

    [project.entry-points."otpt.commands"]
    mine = "my_package:COMMANDS"

A module of ``otpt.plugins`` is imported when an unknown method, data set or model is looked up, all are listed, or
tables and figures of runs are made. It registers objectives, adaptations, calibrators, aggregations and gates
(:mod:`otpt.registry`), inits and systems (``otpt.methods.register_init``, ``register_system``), named methods
(``otpt.methods.register_methods``), data sets and their readers (``otpt.data.register_dataset``, ``register_reader``),
sources of models (``otpt.backbones.register_source``), and layouts of tables, published numbers and figures
(``otpt.report.register_layout``, ``register_reference``, ``otpt.report.figures.register_figure``). A package with slow
imports names modules by what they register instead, in the groups ``otpt.plugins.methods``, ``otpt.plugins.datasets``,
``otpt.plugins.models`` and ``otpt.plugins.reports``; each is imported for such names only.

The object of ``otpt.commands`` is a mapping of commands, {group: {command: ("module:function", help)}}. It is read
whenever commands are listed, so that its module should import nothing slow. The groups ``otpt.pools``
(:mod:`otpt.workers`) and ``otpt.services`` (:mod:`otpt.serve.replicas`) name places to compute on.

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
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.machinery import SOURCE_SUFFIXES
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from otpt.arguments import checked
from otpt.errors import OtptError, cannot_read, describe_error, unknown

PLUGINS = "otpt.plugins"
"""Group of entry points that name modules, and beginning of the groups for one kind of names."""
COMMANDS = "otpt.commands"
"""Group of entry points that name mappings of commands."""
MODULE_PREFIX = "otpt_plugin_"
"""Prefix of the module name of a user file; the digest of the file follows."""

Kind = Literal["methods", "datasets", "models", "reports"]
"""Kind of names that a module registers."""
KINDS: tuple[Kind, ...] = ("methods", "datasets", "models", "reports")
Commands = dict[str, dict[str, tuple[str, str]]]
"""Group → command → ("module:function", help)."""

_Value = TypeVar("_Value")
_Action = Callable[[], None]


class _Saved(NamedTuple):
    """Content of a registry: a function that restores it, and one that returns how to repeat what was added since."""

    restore: _Action
    additions: Callable[[], _Action]


_registries: list[Callable[[], _Saved]] = []
_imported: set[tuple[str, str]] = set()
_importing: list[str] = []
_additions: list[_Action] = []
"""What installed plugins have added to the registries, in the order of their import."""
_lock = threading.RLock()


# ---- registries -----------------------------------------------------------------------------------------------------


def restorable(registry: dict[str, _Value]) -> dict[str, _Value]:
    """Make a registry one of those that :func:`snapshot` restores, and return it."""

    def save() -> _Saved:
        content = dict(registry)

        def restore() -> None:
            registry.clear()
            registry.update(content)

        def additions() -> _Action:
            added = {name: value for name, value in registry.items() if content.get(name) is not value}
            return partial(registry.update, added)

        return _Saved(restore, additions)

    _registries.append(save)
    return registry


def snapshot() -> Callable[[], None]:
    """Return a function that restores the current content of the registries.

    Installed plugins that are imported in the meantime keep what they added: a module is executed only once.
    """
    saved = [save() for save in _registries]
    imported = len(_additions)

    def restore() -> None:
        for registry in saved:
            registry.restore()
        for add in _additions[imported:]:
            add()

    return restore


def is_registered(name: str, registry: Mapping[str, object], kind: Kind) -> bool:
    """Return whether a registry has a name; installed plugins of a kind are imported if it does not."""
    return name in registry or (load_installed_plugins(kind) and name in registry)


# ---- installed packages ---------------------------------------------------------------------------------------------


@cache
def installed_plugins(group: str = PLUGINS) -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages in a group, by name."""
    return tuple(sorted(entry_points(group=group), key=lambda point: point.name))


def load_installed_plugins(*kinds: Kind) -> bool:
    """Import the installed plugins that are not imported yet; return whether there were any.

    Look-ups call it for an unknown name and before listing all names. A plugin that fails is reported and left out.

    Args:
        kinds: kinds of names that are looked up; all of them by default.
    """
    with _lock:
        points: list[EntryPoint] = []
        for group in (PLUGINS, *(f"{PLUGINS}.{kind}" for kind in kinds or KINDS)):
            points += [point for point in installed_plugins(group) if (group, point.name) not in _imported]
        if _importing or not points:  # a plugin that looks names up while it is imported sees those before it
            return False
        for point in points:
            _import(point)
    return True


def _import(point: EntryPoint) -> None:
    saved = [save() for save in _registries]
    _imported.add((point.group, point.name))
    _importing.append(point.name)
    try:
        point.load()
    except Exception as error:
        for registry in saved:
            registry.restore()
        _warn(point, error)
    else:
        _additions.extend(registry.additions() for registry in saved)
    finally:
        _importing.remove(point.name)


def load_entry_point(group: str, kind: str, name: str, available: Sequence[str]) -> Callable[..., _Value]:
    """Import the function that an installed package names in its entry points.

    Args:
        group: group of entry points.
        kind: what the function returns, for messages.
        name: name of the entry point.
        available: all names, for messages.

    Raises:
        OtptError: if no package has the name, or the import fails.
    """
    point = next((point for point in installed_plugins(group) if point.name == name), None)
    if point is None:
        raise unknown(kind, name, available)
    try:
        function: Callable[..., _Value] = point.load()
    except Exception as error:
        raise OtptError(f"The {kind} {name!r} ({point.value}) failed: {describe_error(error)}.") from error
    return function


def plugin_commands() -> Commands:
    """Return the commands of installed packages; those of a package that fails are reported and left out."""
    commands: Commands = {}
    for point in installed_plugins(COMMANDS):
        try:
            added = _read_commands(point.load())
        except Exception as error:
            _warn(point, error)
            continue
        for group, members in added.items():
            commands.setdefault(group, {}).update(members)
    return commands


def _read_commands(value: object) -> Commands:
    """Check the mapping of a plugin's commands."""
    expected = "expected {group: {command: ('module:function', help)}}"
    if not isinstance(value, Mapping):
        raise OtptError(f"its commands are {value!r:.80}; {expected}")
    commands: Commands = {}
    for group, members in value.items():
        if not isinstance(members, Mapping):
            raise OtptError(f"its commands of {group!r} are {members!r:.80}; {expected}")
        commands[str(group)] = {}
        for name, entry in members.items():
            is_pair = isinstance(entry, (tuple, list)) and len(entry) == 2
            if not is_pair or not all(isinstance(text, str) for text in entry) or ":" not in entry[0]:
                raise OtptError(f"its command {name!r} is {entry!r:.80}; {expected}")
            commands[str(group)][str(name)] = (entry[0], entry[1])
    return commands


def _warn(point: EntryPoint, error: Exception) -> None:
    warnings.warn(f"The plugin {point.name!r} ({point.value}) failed: {describe_error(error)}.", stacklevel=4)


# ---- user files -----------------------------------------------------------------------------------------------------


@checked
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
    name = f"{MODULE_PREFIX}{digest}"
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
        raise OtptError(f"The plugin {str(path)!r} failed: {describe_error(error)}.") from error
    return digest
