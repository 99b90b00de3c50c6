"""Files of attributes, JSON and TOML."""

from __future__ import annotations

import random
from pathlib import Path

from otpt.methods.inits.attributes import attribute_digest, names_with_attributes, read_attributes
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import as_json, mutated, odd, storable, text

_GOOD = {"cat": ["furry", "small"], "dog": ["loyal", "brown"], "red panda": ["red", "shy"]}


def _attributes(rng: random.Random, given: Path) -> Input:
    if rng.random() < 0.6:
        path = given / "attributes.json"
        path.write_bytes(as_json(rng, mutated(rng, _GOOD) if rng.random() < 0.9 else odd(rng)))
    else:
        path = given / "attributes.toml"
        lines = [f"{rng.choice(('cat', 'dog', f'a{n}'))} = {rng.choice(('[]', '1', '[1]', '[[]]'))}" for n in range(3)]
        lines.append('"' + storable(text(rng)).replace("\\", "").replace('"', "") + '" = ["x"]')
        path.write_bytes("\n".join(lines).encode("utf-8", "replace"))

    def ask() -> object:
        found = read_attributes(path)
        return attribute_digest(names_with_attributes(list(_GOOD) if rng.random() < 0.5 else list(found), found))

    return Input(path.name, ask)


KINDS = [Kind("attribute files", _attributes)]
