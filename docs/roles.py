"""Docstrings for the site, an extension of griffe.

The roles of Sphinx, ``:func:`name```, become plain code, and examples a block of code: Markdown would take their
``>>>`` for a quotation within a quotation within a quotation.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?(?:[\w.]+\.)?([\w]+)`")
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)
"""From a prompt to the next empty line."""


class Roles(griffe.Extension):
    """Rewrites every docstring once it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Keep the last part of the name of a role; fence the examples."""
        if obj.docstring is not None:
            words = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", words)
