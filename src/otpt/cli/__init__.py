"""The command line: arguments in, words out.

otpt predict cat.jpg --classes cat dog "red panda" --method o-tpt
otpt methods
otpt models
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from otpt._version import __version__
from otpt.errors import OtptError

BAD_INPUT = 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line and where to read on, instead of printing the whole usage."""

    def error(self, message: str) -> Any:
        self.exit(BAD_INPUT, f"{self.prog}: {message}. See '{self.prog} --help'.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0, or 2 for input that cannot be used."""
    parser = _Parser(prog="otpt", description="Calibrated test-time prompt tuning of CLIP-like models.")
    parser.add_argument("--version", action="version", version=f"otpt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    # Imported here, so that `otpt --version` does not wait for torch.
    from otpt.cli import (
        cache,
        certify,
        compare,
        datasets,
        demo,
        evaluate,
        methods,
        metrics,
        models,
        plot,
        predict,
        report,
        reproduce,
        sweep,
        table,
        train,
    )

    running = (predict, evaluate, metrics, sweep, train, certify, reproduce)
    for module in (*running, table, compare, plot, report, cache, datasets, methods, models, demo):
        module.add_command(commands)
    options = parser.parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return int(options.run(options))
    except OtptError as error:
        print(f"otpt: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("otpt: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`otpt … | head`): nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """A warning as a sentence, without the file and line of our own code."""
    print(f"otpt: note: {message}", file=sys.stderr)
