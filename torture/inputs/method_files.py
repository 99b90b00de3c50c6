"""Methods: TOML files, and names of methods as people might type them."""

from __future__ import annotations

import random
from pathlib import Path

from otpt.methods import get_method, get_methods
from otpt.methods.names.parts import field_names, known_parts, published_names
from otpt.methods.names.registry import load_methods
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import damaged, storable, text

_KEYS = (
    "summary", "source", "caution", "objectives", "init", "adapt", "calibrate", "aggregate", "gate", "temperature",
    "steps", "learning_rate", "learning-rate", "weight_decay", "selection_ratio", "reference", "two_step",
    "selection", "settings", "condition", "views", "augmix", "name", "__class__", "scope", "views_if",
)  # fmt: skip
_WORDS = (
    "words", "context", "none", "clean", "sals", "cots", "vote", "entropy", "orthogonality", "tda", "agreement",
    "templates", "maple", "coop", "promptsmooth", "ts", "weak-strong", "confident", "image", "stream",
    "../../outside/secret.txt",
)  # fmt: skip
_VALUES = (
    "0", "1", "-1", "1e308", "inf", "nan", "-inf", "true", "false", "[]", "{}", "[1, 2]", "1979-05-27", "07:32:00",
    '""', "9" * 30, "{ entropy = 1.0 }", "{ entropy = { fine-grained = 1.0, shift = nan } }",
    "{ orthogonality = true }", "{ x = { y = { z = 1 } } }", "0x7fffffffffffffff", "'''\nlines\n'''",
    "{ sigma = 1e999 }", "6", "64", "0.1", "5e-3",
)  # fmt: skip


def _value(rng: random.Random) -> str:
    choice = rng.random()
    if choice < 0.4:
        return rng.choice(_VALUES)
    if choice < 0.7:
        return f'"{rng.choice(_WORDS)}"'
    return '"' + storable(text(rng)).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _key(rng: random.Random) -> str:
    if rng.random() < 0.85:
        return rng.choice(_KEYS)
    return '"' + storable(text(rng)).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _toml(rng: random.Random) -> bytes:
    choice = rng.random()
    if choice < 0.03:
        return b"a = " + b"[" * rng.choice((500, 5_000, 100_000))
    if choice < 0.05:
        return ("[" + ".".join("a" * 3 for _ in range(rng.choice((50, 5_000)))) + "]\nx = 1\n").encode()
    lines = []
    for number in range(rng.randrange(1, 4)):
        lines.append(f"[{rng.choice(('mine', 'o-tpt', f'm{number}', _key(rng)))}]")
        lines += [f"{_key(rng)} = {_value(rng)}" for _ in range(rng.randrange(6))]
    data = "\n".join(lines).encode("utf-8", "replace")
    return damaged(rng, data)[0] if choice < 0.25 else data


def _file(rng: random.Random, given: Path) -> Input:
    path = given / "mine.toml"
    path.write_bytes(_toml(rng))

    def ask() -> object:
        found = load_methods(path)
        return [(method.name, method.scope, method.known_settings) for method in found.values()]

    return Input("a file", ask)


def _name(rng: random.Random, given: Path) -> Input:
    parts = list(known_parts())
    names = [*published_names(), *field_names()]
    choice = rng.random()
    if choice < 0.5:
        name = "+".join(rng.choice(parts) for _ in range(rng.randrange(1, 6)))
    elif choice < 0.7:
        name = damaged(rng, rng.choice(names).encode())[0].decode("utf-8", "replace")
    elif choice < 0.75:
        name = "+".join(["tpt"] * rng.choice((2, 100, 20_000)))
    else:
        name = "+".join(text(rng) for _ in range(rng.randrange(1, 4)))
    if rng.random() < 0.1:
        name = f"{given}/{name}.toml:{text(rng)}"
    if rng.random() < 0.1:
        return Input(f"names {ascii(name)[:60]}", lambda: get_methods([name, "tpt"]))
    return Input(f"the name {ascii(name)[:60]}", lambda: get_method(name).scope)


KINDS = [Kind("method files", _file), Kind("method names", _name, known_parts)]
