"""Spelling of text and code: ``python docs/spelling.py``.

codespell's common mistakes; American spellings, which are codespell's list of British ones read backwards; and
``words.txt`` beside this file: words of the field that are right, and words that this project does not use.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import codespell_lib

ROOT = Path(__file__).resolve().parent.parent
WORDS = Path(__file__).with_name("words.txt")
LOOKED_AT = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs", "src", "tests", "benchmarks", "training",
)  # fmt: skip
NOT_TEXT = ("*.json", "*.toml", "*.svg", "*.png", "*.safetensors", "*.js", "*.css", "*/class_names/*", "*/words.txt",
            "*/katex/*", "*.npz", "*/test_checks.py")  # fmt: skip


def american() -> dict[str, str]:
    """American spelling → British, by codespell's own list."""
    folder = Path(codespell_lib.__file__).parent / "data"
    lines = (folder / "dictionary_en-GB_to_en-US.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("->") for line in lines if "->" in line)
    return {us.strip().rstrip(","): uk for uk, _, us in pairs if "," not in us.strip().rstrip(",")}


def own_words() -> tuple[set[str], dict[str, str]]:
    """Words that are right, and words with what to write in their place."""
    right, others = set(), {}
    for line in WORDS.read_text(encoding="utf-8").splitlines():
        word, arrow, instead = line.partition("#")[0].strip().partition("->")
        if arrow:
            others[word.strip()] = instead.strip()
        elif word:
            right.add(word)
    return right, others


def main(paths: Sequence[str] = LOOKED_AT) -> int:
    """Print what is misspelt; codespell's exit code."""
    right, others = own_words()
    wrong = {word: instead for word, instead in {**american(), **others}.items() if word not in right}
    with tempfile.TemporaryDirectory() as folder:
        dictionary, ignored = Path(folder) / "wrong.txt", Path(folder) / "right.txt"
        dictionary.write_text("".join(f"{word}->{instead}\n" for word, instead in wrong.items()), encoding="utf-8")
        ignored.write_text("".join(f"{word}\n" for word in sorted(right)), encoding="utf-8")
        lists = ["--dictionary", "-", "--dictionary", str(dictionary), "--ignore-words", str(ignored)]
        command = [sys.executable, "-m", "codespell_lib", *lists, "--skip", ",".join(NOT_TEXT), "--quiet-level", "3"]
        return subprocess.run([*command, *paths], check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
