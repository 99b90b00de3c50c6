"""Docstrings for the site: the roles of Sphinx, ``:func:`name```, become plain code (an extension of griffe)."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?(?:[\w.]+\.)?([\w]+)`")


class Roles(griffe.Extension):
    """Rewrites every docstring once it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Keep the last part of the name."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
