"""Class lists: names of every plane of Unicode, right-to-left, a hundred thousand of them, 10,000 letters long."""

from __future__ import annotations

import random
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Any

from otpt.backbones.sources.clip_tokenizer import clip_tokenizer
from otpt.backbones.tokens import Tokenizer
from otpt.cli.options.class_names import chosen_classes
from otpt.data.classes import read_class_list
from otpt.prompts import Prompt, check_class_names
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import damaged, text

_SETTINGS = (
    "# prompt: a photo of a", "# prompt:", "# family: shift", "# family: x", "# augmix: off", "# augmix: perhaps", "#",
    "# prompt: " + "x" * 5000, "# prompt: {}", "# prompt: \u202e",
)  # fmt: skip


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer(clip_tokenizer(), 77)


def _text(rng: random.Random) -> tuple[str, str]:
    choice = rng.random()
    if choice < 0.004:
        count = rng.choice((20_000, 100_000))
        names = [f"class {number}" for number in range(count)]
        if rng.random() < 0.5:
            names[-1] = names[0] if rng.random() < 0.5 else names[-2]
        return "\n".join(names), f"{count:,} names"
    if choice < 0.02:
        return "\n".join(["a" * 10_000, "b" * 10_000, "\u0301" * 10_000, "مرحبا" * 2_000]), "10,000 letters"
    lines = [rng.choice(_SETTINGS) for _ in range(rng.randrange(3))]
    for _ in range(rng.randrange(1, 30)):
        name = text(rng)
        lines.append(f"{name}\t{text(rng)}" if rng.random() < 0.3 else name)
    return rng.choice(("\n", "\n", "\r\n", "\r", "\x0b", "\u2028")).join(lines), f"{len(lines)} lines"


def _use(names: Any) -> object:
    """What a classifier does with names before a model sees them."""
    listed = check_class_names(names)
    prompt = Prompt()
    return _tokenizer()([prompt.sentence(name) for name in listed[:50]])


def _file(rng: random.Random, given: Path) -> Input:
    content, detail = _text(rng)
    data = content.encode(rng.choice(("utf-8",) * 8 + ("utf-16", "latin-1")), "replace")
    if rng.random() < 0.1:
        data = damaged(rng, data)[0]
    path = given / "classes.txt"
    path.write_bytes(data)
    return Input(f"a file of {detail}", lambda: _use(read_class_list(path, unique=rng.random() < 0.8).names))


def _words(rng: random.Random, given: Path) -> Input:
    words = [text(rng) for _ in range(rng.randrange(1, 5))]
    if rng.random() < 0.3:
        words = [",".join(words)]
    if rng.random() < 0.2:
        words[0] = "@" + rng.choice((words[0], "", f"{given}/none.txt"))

    def ask() -> object:
        found = chosen_classes(Namespace(classes=words))
        return None if found is None else _use(found.names)

    return Input(f"--classes {ascii(words)[:60]}", ask)


KINDS = [Kind("class lists", _file, _tokenizer), Kind("class names", _words, _tokenizer)]
