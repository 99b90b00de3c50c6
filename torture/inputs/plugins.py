"""Plugins: the names of their files, and of what they register. (Their code is run on purpose; see SECURITY.md.)"""

from __future__ import annotations

import random
from pathlib import Path

from otpt.methods import get_method
from otpt.methods.plugins import load_plugin
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import storable, text

_BODIES = (
    "import otpt\n@otpt.aggregation\ndef {name}(probabilities):\n    return probabilities[0]\n",
    "import otpt\n@otpt.objective(weight=1.0)\ndef {name}(nothing_that_is_known):\n    return 0\n",
    "import otpt\n@otpt.gate\ndef {name}():\n    return True\n",
    "raise ValueError('first line\\nsecond line')\n",
    "raise Exception\n",
    "def {name}(:\n",
    "import nothing_of_that_name\n",
    "'\\ud800'.encode()\n",
    "x = " + "(" * 300 + ")" * 300 + "\n",
    "",
)
_NAMES = ("tpt", "zero", "median", "entropy", "clean", "none", "_", "a" * 300, "mine_{0}", "ünï", "ℌ", "class", "ſ")


def _plugin(rng: random.Random, given: Path) -> Input:
    name = rng.choice(_NAMES).format(rng.randrange(10**9))
    body = rng.choice(_BODIES).replace("{name}", name).encode()
    if rng.random() < 0.1:
        body = rng.randbytes(30)
    path = given / rng.choice(("mine.py", "mine.py", "mine.txt", "mine", "mine.so", ".py", "a b.py"))
    path.write_bytes(body)
    if rng.random() < 0.25:
        path = given / (storable(text(rng)) or "x")

    def ask() -> object:
        load_plugin(path)
        return get_method(f"tpt+{name.replace('_', '-')}").scope

    return Input(f"{ascii(path.name)[:40]} with {ascii(name)[:40]}", ask)


KINDS = [Kind("plugin names", _plugin)]
