"""The command line: arguments in, words out.

otpt predict cat.jpg --classes cat dog "red panda" --method o-tpt
otpt methods
otpt models
"""

# Nothing is imported here that the interpreter has not: Ctrl-C is answered from the first line of main() on.
from __future__ import annotations

import io
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0, 2 for input that cannot be used, or 130 if it was stopped.

    Args:
        arguments: of the command line. None takes those of the program, which then also answers signals.
    """
    if arguments is not None:
        return _run(arguments)
    import os

    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may stand at the cursor
        from otpt.cli.information.completion import complete

        return complete()
    try:
        from otpt.cli import interrupts

        interrupts.listen()
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # names of files may hold any bytes
        code = _run(sys.argv[1:])
    except KeyboardInterrupt:  # in the line above, before anybody listened
        from otpt.cli import interrupts

        code = interrupts.tell_stopped()
    except BaseException as error:
        if not interrupts.asked():
            interrupts.finished(error.code if isinstance(error, SystemExit) else 1)
            raise
        code = interrupts.tell_stopped()
    interrupts.finished(code)
    return code


def _run(arguments: Sequence[str]) -> int:
    import os
    import warnings

    from otpt.cli import interrupts
    from otpt.cli.notes import say, tell
    from otpt.cli.parser import BAD_INPUT, parse
    from otpt.errors import OtptError

    options = parse(arguments)
    try:
        with warnings.catch_warnings():
            # a sentence, without the file and line of our own code
            warnings.showwarning = lambda message, *_, **__: tell(str(message))
            return int(options.run(options))
    except OtptError as error:
        if interrupts.asked():  # in the middle of something that took the interrupt for a failure of its own
            return interrupts.tell_stopped()
        say(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return interrupts.tell_stopped()
    except BrokenPipeError:
        # The reader of our output has gone (`otpt … | head`): nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
