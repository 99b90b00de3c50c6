"""``otpt doctor`` never fails; Tab completes commands, options and names without a model library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from oracles.command import run

from otpt.cli.information import doctor
from otpt.cli.parser import COMMANDS

pytestmark = pytest.mark.slow


def test_doctor_tells_what_is_here(capsys, monkeypatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setenv("OTPT_CACHE", str(tmp_path))
    code, out, err = run(capsys, "doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["threads"]["torch"] == torch.get_num_threads()
    assert found["processor"]["cores"] == os.cpu_count()
    assert found["devices"]["available"][0] == "cpu"
    assert found["cache"] == {"folder": str(tmp_path), "images": 0, "bytes": 0}
    code, out, _ = run(capsys, "doctor", "--json", "--cache", tmp_path / "other")
    assert json.loads(out)["cache"]["folder"] == str(tmp_path / "other")
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert metadata.version("torch") in out


def test_doctor_says_what_is_missing_for_what_and_never_fails(capsys, monkeypatch) -> None:
    known = metadata.version

    def version(name: str) -> str:
        if name in {"ray", "resvg-py"}:
            raise metadata.PackageNotFoundError(name)
        return known(name)

    def broken() -> list[str]:
        raise RuntimeError("the driver\nis gone.")

    monkeypatch.setattr(doctor.metadata, "version", version)
    monkeypatch.setattr("otpt.backbones.devices.available_devices", broken)
    code, out, err = run(capsys, "doctor")
    assert (code, err) == (0, "")
    assert "For evaluate --engine ray: many machines, ray is missing: pip install 'otpt[ray]'." in out
    assert "For the emoji bench and otpt demo, resvg-py is missing: pip install 'otpt[emoji]'." in out
    assert "devices: RuntimeError: the driver is gone." in out


def test_extras_are_those_of_the_package() -> None:
    assert set(doctor.EXTRAS) == set(metadata.metadata("otpt").get_all("Provides-Extra") or ()) - {"dev"}
    needed = [each for each in metadata.requires("otpt") or [] if "extra ==" in each]
    for extra, (names, _) in doctor.EXTRAS.items():
        own = {
            each.partition(">")[0].partition("[")[0].strip().lower()
            for each in needed
            if f"extra == '{extra}'" in each.replace('"', "'")
        }
        assert own == {name.lower() for name in names}


_COMPLETE = """
import json, sys
from otpt.cli import main
import os
real = os._exit
def leave(code):
    heavy = sorted({"torch", "numpy", "open_clip", "matplotlib", "pyarrow"} & set(sys.modules))
    print(json.dumps(heavy), file=sys.stderr, flush=True)
    real(code)
os._exit = leave
main()
"""


def complete(line: str, folder: Path) -> list[str]:
    """What a shell would offer at the end of the line."""
    answer = folder / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    done = subprocess.run(
        [sys.executable, "-c", _COMPLETE], env={**os.environ, **asked}, cwd=folder, capture_output=True, text=True
    )
    assert json.loads(done.stderr.splitlines()[-1]) == [], "a Tab imports no heavy library"
    return [word.strip() for word in answer.read_text().split("\n") if word.strip()]


def test_tab_completes(tmp_path: Path) -> None:
    assert {"predict", "evaluate", "doctor"} <= set(complete("otpt ", tmp_path))
    assert complete("otpt pred", tmp_path) == ["predict"]
    assert "--classes" in complete("otpt predict --cl", tmp_path)
    assert "tpt+sals" in complete("otpt evaluate dtd --methods tpt+sa", tmp_path)
    assert "ViT-B-16/openai" in complete("otpt predict --backbone ViT-B-16/op", tmp_path)
    assert "caltech101" in complete("otpt evaluate calt", tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells(shell: str, capsys) -> None:
    code, out, err = run(capsys, "completion", shell)
    assert (code, err) == (0, "")
    assert "otpt" in out
    assert "_ARGCOMPLETE" in out
    assert "completion" in COMMANDS
