"""Options of all commands: what belongs to another command, nonsense values, and files that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from otpt.cli.app import make_app
from otpt.cli.commands import all_commands
from otpt.cli.outputs import NEW_FILE
from otpt.cli.pages import commands_with

from .conftest import Run

TARGETS = {name: target for members in all_commands().values() for name, (target, _) in members.items()}


def arguments_of(command: str) -> list:
    app = make_app(f"otpt {command}", TARGETS[command])
    return [argument for argument in app.assemble_argument_collection() if argument.parse and argument.show]


def writes(argument: object) -> bool:
    validators = argument.parameter.validator or ()
    return NEW_FILE in (validators if isinstance(validators, (tuple, list)) else (validators,))


WRITERS = [(name, one.name) for name in TARGETS for one in arguments_of(name) if writes(one)]


def test_every_command_that_writes_a_file_is_known() -> None:
    assert {"calibrate", "export", "train coop", "plot", "report", "table", "compare", "metrics", "decide"} <= {
        command for command, _ in WRITERS
    }


@pytest.mark.parametrize(("command", "option"), WRITERS)
def test_files_are_not_overwritten(otpt: Run, tmp_path: Path, command: str, option: str) -> None:
    """Before any work: the other arguments do not even exist."""
    arguments = arguments_of(command)
    suffix = next(
        (
            f".{ext}"
            for one in arguments
            if one.name == option
            for check in one.parameter.validator
            for ext in getattr(check, "ext", ()) or ()
        ),
        ".json",
    )
    path = tmp_path / f"precious{suffix}"
    path.write_bytes(b"precious")
    words: list[object] = [word for one in arguments if not one.name.startswith("-") for word in ["absent"]]
    for one in arguments:
        if one.required and one.name.startswith("--") and one.name != option:
            words += [one.name, tmp_path / "other.png" if writes(one) else "absent"]
    code, out, err = otpt(*command.split(), *words, option, path)
    assert (code, out) == (2, "")
    assert "precious" in err
    assert "--overwrite" in err
    assert path.read_bytes() == b"precious"
    assert any(one.name == "--overwrite" for one in arguments)


def test_options_of_other_commands_name_them(otpt: Run) -> None:
    """For every option of every command, in a command that does not have it."""
    options = {one.name for name in TARGETS for one in arguments_of(name) if one.name.startswith("--")}
    doctor = {name for one in arguments_of("doctor") for name in one.names}
    for option in sorted(options - doctor):
        code, _, err = otpt("doctor", option, "1")
        owners = commands_with(option)
        assert code == 2
        assert not owners or "; " in err, f"{option}: {err}"
        if "belongs to" in err:
            assert all(owner in err for owner in owners)


RUN_COMMANDS = {
    "plan": ["predict", "20", "--classes", "4"],
    "compare": ["A_RUN", "--resamples", "10"],
    "table": ["A_RUN", "--layout", "plain"],
    "metrics": ["A_RUN"],
    "decide": ["A_RUN", "--methods", "o-tpt"],
    "plot": ["reliability", "A_RUN", "--out", "f.png"],
    "report": ["A_RUN", "--out", "r.html", "--images", "0"],
}
FREE = {"--title", "--out", "--paper"}
"""Options that take any text."""


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN_COMMANDS)
def test_no_option_ignores_a_nonsense_value(otpt: Run, run_folder: Path, command: str) -> None:
    words = [run_folder if word == "A_RUN" else word for word in RUN_COMMANDS[command]]
    for one in arguments_of(command):
        if not one.name.startswith("--") or one.token_count()[0] == 0 or one.name in FREE or "bool" in str(one.hint):
            continue
        at = words.index(one.name) if one.name in words else len(words)
        code, out, err = otpt(command, *words[:at], *words[at + 2 :], one.name, "nonsense")
        assert code == 2, f"{command} {one.name} nonsense: {out[:300]} {err}"
        assert "Traceback" not in err
