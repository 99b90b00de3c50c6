"""An own folder that is called like a registered set stays one's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from oracles.command import run
from oracles.data.data_files import put_images
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt.data import Dataset, load_dataset
from otpt.evaluation import Settings

pytestmark = pytest.mark.slow

IMAGES = ["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put_images(tmp_path / "caltech101", IMAGES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(model: str, data: object) -> tuple[object, ...]:
    return ("evaluate", data, "--methods", "zero-shot", "--backbone", model, "--no-cache", "--out", "run")


def test_the_source_is_part_of_the_run_and_of_the_command_that_makes_it_again(
    here: Path, model: str, capsys, monkeypatch
) -> None:
    assert run(capsys, *evaluate(model, "./caltech101"))[0] == 0
    config = json.loads(Path("run/config.json").read_text())
    (dataset,) = config["datasets"]
    assert (dataset["name"], dataset["source"]) == ("caltech101", (here / "caltech101").as_posix())
    assert f"evaluate {(here / 'caltech101').as_posix()} " in config["commands"][0]
    code, _, _ = run(capsys, "report", "run", "-o", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert code == 0
    assert f"otpt evaluate {(here / 'caltech101').as_posix()}" in page
    assert "data:image/jpeg" in page, "its images are found again without --data"
    put_images(here / "other" / "caltech101", IMAGES)
    monkeypatch.chdir(here / "other")
    code, _, err = run(capsys, *evaluate(model, "./caltech101")[:-1], here / "run")
    assert code == 2
    assert "data set 'caltech101': source is" in err
    assert "Choose another folder" in err


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (("cat", "--classes", "cat", "dog"), "{here}/cat --classes cat dog"),
        (("--limit", "4", "cat", "--classes", "cat", "dog"), "--limit 4 {here}/cat --classes cat dog"),
        (("--split", "test", "--classes", "dog", "bird", "./cat"), "--split test --classes dog bird {here}/cat"),
    ],
)
def test_a_class_that_is_called_like_the_folder_stays_a_class(
    given: tuple[str, ...], stored: str, tmp_path: Path, model: str, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    put_images(tmp_path / "cat", [f"{name}/1.png" for name in (("dog", "bird") if "bird" in given else ("cat", "dog"))])
    more = ("--methods", "zero-shot", "--backbone", model, "--no-cache", "--out", "run")
    code, _, err = run(capsys, "evaluate", *given, *more)
    assert code == 0, err
    (command,) = json.loads(Path("run/config.json").read_text())["commands"]
    assert command.startswith(f"otpt evaluate {stored.format(here=tmp_path.as_posix())} --methods")


def test_bytes_of_rows_do_not_depend_on_where_the_data_lie(here: Path, model: str, capsys) -> None:
    put_images(here / "elsewhere" / "caltech101", IMAGES)
    shards = []
    for data in ("./caltech101", "elsewhere/caltech101"):
        assert run(capsys, *evaluate(model, data)[:-1], data.replace("/", "-"))[0] == 0
        (shard,) = Path(data.replace("/", "-")).rglob("*.parquet")
        shards.append(shard.read_bytes())
    assert shards[0] == shards[1]


def test_the_registered_name_hints_at_the_folder(here: Path, model: str, capsys) -> None:
    code, _, err = run(capsys, *evaluate(model, "caltech101"))
    assert code == 2
    assert "The folder here is ./caltech101." in err
    from otpt.cli.evaluating.own_data import tell_folders

    tell_folders(["caltech101", "dtd", "./caltech101"], here / "data")
    _, err = capsys.readouterr()
    assert err == (
        "otpt: note: 'caltech101' is the registered data set caltech101; for the folder of that name here, write "
        "./caltech101.\n"
    )
    tell_folders(["caltech101"], here)
    assert capsys.readouterr().err == "", "the folder of the registered set itself"


def renamed(dataset: Dataset, origin: str) -> Dataset:
    dataset.origin = origin
    return dataset


@pytest.mark.parametrize(("origin", "beside"), [("dtd", True), ("/home/me/dtd", False)])
def test_the_papers_numbers_are_beside_sets_that_were_loaded_by_name(
    origin: str, beside: bool, tmp_path: Path, capsys
) -> None:
    settings = Settings(methods=["zero-shot", "tpt", "o-tpt"])
    data = renamed(simulated_dataset("dtd", classes=47, images=94), origin)
    simulate_run(tmp_path / "run", [data], settings, model="ViT-B-16/openai")
    _, out, err = run(capsys, "table", tmp_path / "run", "--paper", "--format", "json", "--datasets", "dtd")
    (table,) = json.loads(out)
    printed = [line["entries"]["dtd"]["paper"] for line in table["lines"]]
    assert all(value is not None for value in printed) if beside else set(printed) == {None}
    assert any("is data of your own" in note for note in table["notes"]) is not beside, err


def test_a_template_of_a_registered_set_is_not_taken_for_ones_own(here: Path) -> None:
    settings = Settings(methods=["dataset-templates"])
    own = load_dataset("./caltech101")
    registered = renamed(simulated_dataset("caltech101"), "caltech101")
    (method,) = settings.chosen
    assert settings.task_for(own).templates_of(method).sentences == ("a photo of a {}.",)
    assert replace(settings).task_for(registered).dataset == "caltech101"


def test_a_run_without_a_source_takes_the_first_that_is_said(tmp_path: Path) -> None:
    from otpt.errors import OtptError
    from otpt.runs import Run

    data = simulated_dataset("dtd", classes=4, images=8)
    simulate_run(tmp_path / "run", [data], Settings(methods=["zero-shot"]))
    assert "source" not in Run(tmp_path / "run").datasets[0]
    simulate_run(tmp_path / "run", [renamed(data, "/data/dtd")], Settings(methods=["tpt"]))
    assert Run(tmp_path / "run").datasets[0]["source"] == "/data/dtd"
    with pytest.raises(OtptError, match="source is '/data/dtd' there and '/other/dtd' now"):
        simulate_run(tmp_path / "run", [renamed(data, "/other/dtd")], Settings(methods=["o-tpt"]))
