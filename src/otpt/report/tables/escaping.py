"""Names may hold anything: here they are escaped for the format that they are written in."""

from __future__ import annotations

import unicodedata

LONGEST = 80

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
    "…": r"\dots{}",
    "±": r"$\pm$",
    "−": r"$-$",
}
_MARKDOWN = frozenset("\\`*_{}[]<>()#|~!$&")
_FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the start of a formula."""


def plain(text: str) -> str:
    """One line of at most 80 characters, without control characters and marks of text direction."""
    shown = "".join(" " if unicodedata.category(c) in {"Cc", "Zl", "Zp"} else c for c in text)
    shown = "".join(c for c in shown if unicodedata.category(c) not in {"Cf", "Cs", "Co", "Cn"})
    shown = " ".join(shown.split())
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def latex(text: str) -> str:
    """Escaped for LaTeX."""
    return "".join(_LATEX.get(c, c) for c in plain(text))


def markdown(text: str) -> str:
    """Escaped for Markdown, inside a table too; HTML stays text."""
    return "".join(f"\\{c}" if c in _MARKDOWN else c for c in plain(text))


def csv_text(text: str) -> str:
    """As a cell that no spreadsheet takes for a formula; quoting is left to the writer."""
    shown = plain(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
