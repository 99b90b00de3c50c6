"""``python -m torture.inside MODULE OPTIONS``: a part in a process that has the shim; outcomes as lines of JSON.

:func:`outcomes` starts it. The part's module has ``cases(options, bench)``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from benchmarks.paths import TESTS
from torture.records import Case, Outcome, PartOptions
from torture.shim import Shim, build, environment


def outcomes(module: str, options: PartOptions) -> Iterator[Outcome]:
    """The cases of a module, run by a process with the shim; it ends when nobody asks for more."""
    library = build(options.folder)
    own = replace(options, folder=options.folder / "cases")
    own.folder.mkdir()
    command = [sys.executable, "-m", "torture.inside", module, json.dumps(asdict(own), default=str)]
    root = str(Path(__file__).parent.parent)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(library), cwd=root
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while True:
                process.stdin.write("next\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    break
                values = json.loads(line)
                yield Outcome(**{**values, "case": Case(**values["case"])})
        finally:
            process.stdin.close()  # it ends after the case that it is at, and leaves no mount behind
            process.wait()
    if process.returncode:
        raise RuntimeError(f"The process of {module} ended with {process.returncode}.")


def main() -> None:
    """One case for each line that is asked for."""
    module, text = sys.argv[1:]
    values = json.loads(text)
    options = PartOptions(**{**values, "folder": Path(values["folder"])})
    sys.path.insert(0, str(TESTS))
    from torture.bench import Bench

    cases = import_module(module).cases(options, Bench(options.folder, Shim()))
    for _ in sys.stdin:
        outcome = next(cases, None)
        if outcome is None:
            return
        print(json.dumps(asdict(outcome)), flush=True)
    cases.close()


if __name__ == "__main__":
    main()
