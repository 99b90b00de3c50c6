"""Text from outside, such as names of files and classes, escaped for the place where it is shown or written.

| destination | function | what happens |
|---|---|---|
| terminal, log line, error message | :func:`one_line` | control and bidirectional characters become visible escapes |
| JSON on a terminal | :func:`json_text` | the same, as JSON's own escapes: a parser reads the original text |
| cell of a text table, figure | :func:`plain` | such characters are left out, long texts are cut |
| LaTeX, Markdown | :func:`latex`, :func:`markdown` | special characters are escaped too |
| CSV | :func:`csv_cell` | texts that a spreadsheet would compute get an apostrophe |
| name of a file | :func:`file_name` | only what every file system and shell accepts |

HTML is escaped by ``html.escape``, and by Jinja's autoescaping in the page of a report.
"""

from __future__ import annotations

import json
import re
import unicodedata

ELLIPSIS = "…"
LONGEST = 80
"""Characters of a name in tables."""

_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode categories of control characters, bidirectional marks, surrogates and line separators."""
_JOINERS = ("\u200c", "\u200d")  # zero-width (non-)joiner: harmless, and part of Persian, Indic scripts and emoji
_BLANKS = frozenset(("Cc", "Zl", "Zp"))
_UNDRAWN = frozenset(("Cf", "Cs", "Co", "Cn"))
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": "--", "…": r"\dots{}", "±": r"$\pm$", "−": r"$-$",
    "≈": r"$\approx$", "≥": r"$\geq$", "≤": r"$\leq$",
}  # fmt: skip
_MARKDOWN = frozenset("\\`*_{}[]<>#|~$&")
"""Characters that change how Markdown shows a text; parentheses do not, and an escaped one opens mathematics."""
_MARKDOWN_LIST = re.compile(r"[-+](?=[-+ ]|$)|(?<=\d)[.)](?=\s|$)")
"""What makes a line an item of a list or a rule, at its begin or after its leading digits."""


def one_line(text: str) -> str:
    """Return a single printable line: control, bidirectional and other invisible characters become escapes.

    >>> print(one_line("a\\x1b[2Jb"), one_line("café.jpg"))
    a\\x1b[2Jb café.jpg
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def json_text(value: object, *, indent: int | None = None) -> str:
    """Serialise as JSON whose invisible characters are escaped, so that it can be shown on a terminal.

    >>> print(json_text({"label": "\\x9b2J"}))
    {"label": "\\u009b2J"}
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(_json_escape(letter) for letter in text) if not text.isprintable() else text


def plain(text: str, longest: int = LONGEST) -> str:
    """Return one line of at most ``longest`` characters, without control and bidirectional characters.

    >>> plain("a\\nb\\x1b[2J"), plain("x" * 90, 5)
    ('a b [2J', 'xxxx…')
    """
    letters = (_drawn(letter) for letter in text) if not text.isprintable() else text
    shown = " ".join("".join(letters).split())
    return shown if len(shown) <= longest else shown[: longest - 1] + ELLIPSIS


def latex(text: str) -> str:
    """Return :func:`plain` text for LaTeX.

    >>> print(latex("50 % of a_b"))
    50 \\% of a\\_b
    """
    return "".join(_LATEX.get(letter, letter) for letter in plain(text))


def markdown(text: str, longest: int = LONGEST) -> str:
    """Return :func:`plain` text for a cell or a line of Markdown.

    >>> print(markdown("a|b (c)"), markdown("1. first"))
    a\\|b (c) 1\\. first
    """
    shown = "".join(f"\\{letter}" if letter in _MARKDOWN else letter for letter in plain(text, longest))
    digits = len(shown) - len(shown.lstrip("0123456789"))
    return f"{shown[:digits]}\\{shown[digits:]}" if _MARKDOWN_LIST.match(shown, digits) else shown


def csv_cell(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would compute; CSV writers quote by themselves.

    >>> csv_cell("=1+1"), csv_cell("ferry")
    ("'=1+1", 'ferry')
    """
    return f"'{text}" if text.lstrip().startswith(_FORMULA) or text.startswith(("\t", "\r", "\n")) else text


def csv_name(cell: str) -> str:
    """Return the text of a cell that :func:`csv_cell` has written.

    >>> csv_name("'=1+1"), csv_name("'s-Hertogenbosch")
    ('=1+1', "'s-Hertogenbosch")
    """
    return cell[1:] if cell.startswith("'") and csv_cell(cell[1:]) != cell[1:] else cell


def file_name(text: str, longest: int = 60) -> str:
    """Return a part of a file name, at most ``longest`` characters: no separators, controls or leading dots.

    >>> file_name("../AC/DC\\n"), file_name("red panda"), file_name("con?")
    ('AC DC', 'red panda', 'con')
    """
    shown = re.sub(r'[\\/:*?"<>|]', " ", plain(text, longest))
    return " ".join(shown.split()).strip(". -") or "unnamed"


def _visible(letter: str) -> str:
    if unicodedata.category(letter) in _HIDDEN and letter not in _JOINERS:
        return letter.encode("unicode_escape").decode("ascii")
    return letter


def _json_escape(letter: str) -> str:
    """Escape a character of a JSON text, whose own line breaks stay; it has no other ASCII controls but DEL."""
    if letter == "\n" or _visible(letter) == letter:
        return letter
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def _drawn(letter: str) -> str:
    category = unicodedata.category(letter)
    if category in _BLANKS:
        return " "
    return "" if category in _UNDRAWN and letter not in _JOINERS else letter
