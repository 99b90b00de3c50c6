"""Cases that do what must not be done, judged: ``python judged_cases.py FOLDER`` prints {name: [result, ok]}.

In a process of its own, since every case is judged in a fork of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from otpt.errors import OtptError
from torture.inputs.kinds import Broken, Input, Kind, plug_in
from torture.inputs.workers import judged


def write(given: Path) -> None:
    (given.parent.parent / "outside" / "owned").write_text("x", encoding="utf-8")


def read(given: Path) -> None:
    (given.parent.parent / "outside" / "secret.txt").read_bytes()


def here(given: Path) -> None:
    Path("left behind").write_text("x", encoding="utf-8")


def start(given: Path) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def crash(given: Path) -> None:
    os.abort()


def eat(given: Path) -> None:
    bytearray(1 << 40)


def fail(given: Path) -> None:
    raise KeyError("x")


def refuse(given: Path) -> None:
    (given / "own.txt").write_text("x", encoding="utf-8")
    raise OtptError("There is no such thing; give another.")


def mumble(given: Path) -> None:
    raise OtptError("no")


def break_a_promise(given: Path) -> None:
    raise Broken("a script")


def answer(given: Path) -> None:
    (given / "own.txt").write_text("x", encoding="utf-8")


CASES = (write, read, here, start, crash, eat, fail, refuse, mumble, break_a_promise, answer)


def main() -> None:
    """Judge them all."""
    for each in CASES:
        plug_in(Kind(each.__name__, lambda rng, given, ask=each: Input("", lambda: ask(given))), 1)
    outcomes = judged([(each.__name__, 0) for each in CASES], Path(sys.argv[1]))
    print(json.dumps({outcome.case.kind: [outcome.result, outcome.ok] for outcome in outcomes}))


if __name__ == "__main__":
    main()
