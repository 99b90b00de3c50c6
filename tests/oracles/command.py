"""The command line, run inside the test's process."""

from __future__ import annotations

import pytest

from otpt.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, output and error output of ``otpt ARGUMENTS``; there is never a traceback."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as error:  # argparse
        code = int(error.code or 0)
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err
