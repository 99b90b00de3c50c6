"""One meaning per option on every command; old spellings work and give a hint of one line."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from oracles.command import run

from otpt.cli.options.class_names import chosen_classes
from otpt.cli.parser import COMMANDS, make_parser, parse
from otpt.errors import OtptError

pytestmark = pytest.mark.slow


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every command and sub-command by name."""
    found = {}

    def collect(name: str, parser: argparse.ArgumentParser) -> None:
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        found[name] = parser
        for action in below:
            for own, each in action.choices.items():
                collect(f"{name} {own}".strip(), each)

    collect("", make_parser(COMMANDS))
    return found


PARSERS = parsers()
PAIRS = {"--methods": "--method", "--seeds": "--seed", "--templates": "--template", "--out": "-o"}
COMPUTE = ("predict", "evaluate", "sweep", "certify", "reproduce", "demo", "train coop", "train maple", "train baple",
           "train fpt", "plot similarity")  # fmt: skip
SHARED = ("evaluate", "sweep", "certify", "reproduce", "demo")


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {name: action for action in parser._actions for name in action.option_strings}


@pytest.mark.parametrize("name", [name for name in PARSERS if name])
def test_both_spellings_on_every_command(name: str) -> None:
    known = options_of(PARSERS[name])
    for plural, one in PAIRS.items():
        assert (plural in known) == (one in known), (plural, one)
        assert known.get(plural) is known.get(one)


def test_methods_and_seeds_on_every_command_that_has_several() -> None:
    without = ("", "train", "cache", "datasets", "methods", "models", "doctor", "completion", "plot")
    for name, parser in PARSERS.items():
        known = options_of(parser)
        if name.partition(" ")[0] not in without or name.startswith("plot "):
            assert "--methods" in known, name
            assert "--seeds" in known, name


def test_options_of_several_words_add_up_when_they_are_repeated() -> None:
    given = ["predict", "0.png", "--classes", "cat", "dog", "--methods", "tpt", "--set", "lambda=6"]
    assert (once := parse(given)).methods == ["tpt"], "in place of the default"
    assert once.settings == ["lambda=6"]
    both = parse([*given, "--method", "o-tpt", "zero", "--set", "steps=2", "--classes", "sea"])
    assert (both.methods, both.settings) == (["tpt", "o-tpt", "zero"], ["lambda=6", "steps=2"])
    assert both.classes == ["cat", "dog", "sea"]
    assert parse(given).methods == ["tpt"], "no list is shared between calls"
    assert parse(["evaluate", "dtd", "--seeds", "1", "--seeds", "2"]).seeds == [1, 2]


def test_threads_and_workers_on_every_command_that_computes() -> None:
    for name in COMPUTE:
        assert "threads of each process" in str(options_of(PARSERS[name])["--threads"].help), name
    for name in SHARED:
        assert str(options_of(PARSERS[name])["--workers"].help).startswith("processes"), name


def test_an_option_means_the_same_wherever_it_is() -> None:
    """Type and number of values agree; where one value is taken in place of several, that is the only difference."""
    for option in ("--classes", "--data", "--split", "--backbone", "--device", "--precision", "--threads", "--workers",
                   "--json", "--bins", "--side", "--seed", "--method", "--templates", "--fpp"):  # fmt: skip
        found = {
            (action.type, action.dest if action.nargs == 0 else "")
            for parser in PARSERS.values()
            for name, action in options_of(parser).items()
            if name == option and action.help != argparse.SUPPRESS
        }
        assert len(found) == 1, (option, found)


def test_a_process_per_gpu_unless_workers_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from otpt.cli.options.engines import local_engine
    from otpt.evaluation import LocalEngine, ProcessEngine

    monkeypatch.setattr("otpt.backbones.available_devices", lambda: ["cpu", "cuda:0", "cuda:1"], raising=False)
    for name in ("evaluate", "reproduce"):
        parser = PARSERS[name]
        assert isinstance(local_engine(parser.parse_args(["paper"])), ProcessEngine)
        for words in (["--workers", "1"], ["--device", "cpu"], ["--device", "cuda:1"]):
            assert isinstance(local_engine(parser.parse_args(["paper", *words])), LocalEngine)
        with pytest.raises(OtptError, match="--workers was given 0; expected 1 or more"):
            local_engine(parser.parse_args(["paper", "--workers", "0"]))


def names(*words: str) -> tuple[str, ...]:
    listed = chosen_classes(argparse.Namespace(classes=list(words)))
    assert listed is not None
    return listed.names


def test_classes_as_names_as_a_comma_list_and_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "names.txt"
    file.write_text("# comment\ncat\ncrab, king\nred panda\n", encoding="utf-8")
    assert names("cat", "crab, king", "red panda") == ("cat", "crab, king", "red panda")
    assert names("cat,dog,red panda") == names("cat, dog , red panda") == ("cat", "dog", "red panda")
    assert names('cat, "crab, king", dog') == ("cat", "crab, king", "dog")
    assert names("cat,", "dog,", "red", "panda") == ("cat", "dog", "red panda")
    assert names(f"@{file}") == ("cat", "crab, king", "red panda")
    assert names("dog", f"@{file}") == ("dog", "cat", "crab, king", "red panda")
    assert capsys.readouterr().err == ""
    assert names(str(file)) == ("cat", "crab, king", "red panda")
    assert capsys.readouterr().err == f"otpt: note: --classes {file} is an old spelling; write --classes @{file}.\n"
    assert names("cat,dog", "horse") == ("cat,dog", "horse")
    assert "'cat,dog' is taken as the name of one class" in capsys.readouterr().err
    with pytest.raises(OtptError, match="No such file"):
        names("@nowhere.txt")


def test_the_settings_of_a_class_file_hold_for_predict_too(capsys, model: str, images: Path, tmp_path: Path) -> None:
    import json

    file = tmp_path / "names.txt"
    file.write_text("# prompt: an example of\n# family: shift\n# augmix: off\ncat\ndog\n", encoding="utf-8")
    common = ("predict", images / "0.png", "--backbone", model, "--views", 8, "--json")
    _, by_file, _ = run(capsys, *common, "--classes", f"@{file}")
    given = ("--prompt", "an example of", "--family", "shift", "--no-augmix")
    _, by_options, _ = run(capsys, *common, "--classes", "cat", "dog", *given)
    assert json.loads(by_file) == json.loads(by_options)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--workers", "1"), "--workers is an old spelling; write --threads (--workers are processes)."),
        (("--classes-file", "names.txt"), "--classes-file is an old spelling; write --classes @FILE."),
        (("--classes", "names.txt"), "--classes names.txt is an old spelling; write --classes @names.txt."),
    ],
)
def test_old_spellings_of_predict(
    words: tuple[str, ...], hint: str, capsys, model: str, images: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("cat\ndog\n", encoding="utf-8")
    classes = () if any("classes" in word for word in words) else ("--classes", "cat,dog")
    code, out, err = run(capsys, "predict", images / "0.png", *words, *classes, "--backbone", model, "--views", 2)
    assert (code, err) == (0, f"otpt: note: {hint}\n")
    assert "cat" in out


def test_threads_change_no_bit(capsys, model: str, images: Path) -> None:
    import torch

    before = torch.get_num_threads()
    common = ("predict", images, "--classes", "cat,dog", "--backbone", model, "--views", 8, "--json")
    try:
        outputs = {run(capsys, *common, "--threads", threads)[1] for threads in (0, 1, 3)}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert len(outputs) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "emoji/food", "--prompts", "@~/none"),
        ("evaluate", "emoji/food", "--method", "templates", "--templates", "@~/none"),
        ("evaluate", "emoji/food", "--classes", "@~/none"),
        ("plot", "similarity", "-o", "x.png", "--classes", "cat,dog", "--prompts", "@~/none"),
    ],
    ids=lambda words: f"{words[0]} {words[-2]}",
)
def test_a_file_in_the_home_folder(words: tuple[str, ...], capsys, tmp_path: Path, monkeypatch) -> None:
    """A shell does not expand ``@~/``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    code, _, err = run(capsys, *words)
    assert code == 2
    assert str(tmp_path / "none") in err


def test_a_data_set_after_the_class_names_is_taken_back(tmp_path: Path, capsys, monkeypatch, model: str) -> None:
    from oracles.data.data_files import put_images

    monkeypatch.chdir(tmp_path)
    put_images(tmp_path / "mine", ["cat/1.png", "dog/1.png"])
    code, out, err = run(capsys, "datasets", "check", "--classes", "dog", "cat", "mine")
    assert code == 0, err
    assert "'mine' after --classes: taken as data set" in err
    assert out.startswith("mine: 2 classes, 2 images")
    assert run(capsys, "evaluate", "--classes", "a", "b")[0] == 2


def test_old_spelling_of_the_papers_backbone(capsys, tmp_path: Path) -> None:
    options = ("reproduce", "paper", "--data", tmp_path, "--out", tmp_path / "runs", "--tables", 1)
    code, new, err = run(capsys, *options, "--paper-backbone", "RN50")
    assert (code, err) == (0, "")
    code, old, err = run(capsys, *options, "--backbone", "RN50")
    assert (code, err) == (0, "otpt: note: --backbone RN50 is an old spelling; write --paper-backbone RN50.\n")
    assert old == new
