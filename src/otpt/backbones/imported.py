"""Classes of open_clip, timm and transformers, recognised without importing these libraries.

An object can only be of such a class if the library has been imported, so a look into ``sys.modules`` is enough.
Importing open_clip costs seconds, and ``pocket`` needs none of it.
"""

from __future__ import annotations

import sys
from typing import Any


def imported_class(module: str, name: str) -> type[Any] | None:
    """The class ``name`` of ``module`` if that module has been imported, else ``None``."""
    kind: type[Any] | None = getattr(sys.modules.get(module), name, None)
    return kind


def is_instance(thing: object, module: str, name: str) -> bool:
    """``isinstance(thing, module.name)``, without importing ``module``."""
    kind = imported_class(module, name)
    return kind is not None and isinstance(thing, kind)
