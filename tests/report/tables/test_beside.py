"""Ours beside published numbers: only where both can mean the same, and what differs is said."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from oracles.command import run
from oracles.runs.simulated_runs import simulate_run

from otpt import OtptError
from otpt.data import Dataset
from otpt.data.registered.entry import find_entry
from otpt.evaluation import Settings
from otpt.methods import Method, get_method
from otpt.report import ResultKey, open_results
from otpt.report.papers.published import get_paper
from otpt.report.tables.beside import Beside, BesideRow, Subset, set_beside
from otpt.views import ViewRecipe

pytestmark = pytest.mark.slow

MODEL = "ViT-B-16/openai"
PROMPT = "a photo of a"
SHIFTS = ("imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")


def named(method: str, name: str) -> Method:
    """A method under the name of one that is not needed to read runs."""
    return replace(get_method(method), name=name)


METHODS = ("zero-shot", "tpt", "o-tpt", named("tpt", "cots+tpt+weak-strong"), named("zero-shot", "weak-strong"))


def registered(name: str, images: int = 12, *, own_names: bool = False) -> Dataset:
    """A registered data set of a few images, with its classes or others; the names of ImageNet's do not matter."""
    entry = find_entry(name)
    assert entry is not None
    names = [f"class {i}" for i in range(entry.classes or 0)]
    return Dataset(
        name,
        names if own_names or name.startswith("imagenet") else entry.class_list().names,
        ids=[f"{name}/{i:05d}.jpg" for i in range(images)],
        labels=[i % len(names) for i in range(images)],
        images=lambda index: b"",
        family=entry.family,
        augmix=entry.augmix,
    )


def settings(**changes: object) -> Settings:
    return Settings(**{"methods": METHODS, "shard_size": 16, **changes})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("beside")
    sets = [registered("dtd"), registered("pets")]
    shifts = [registered(name) for name in SHIFTS]
    other = {"recipe": ViewRecipe(n_views=32), "bins": 15, "seeds": (0, 1), "prompts": (PROMPT, "an example of")}
    foreign = registered("dtd", own_names=True)
    return {
        "sets": simulate_run(folder / "sets", sets, settings(), model=MODEL),
        "shifts": simulate_run(folder / "shifts", shifts, settings(augmix=False), model=MODEL),
        "other": simulate_run(folder / "other", sets, settings(augmix=False, **other), model=MODEL),
        "foreign": simulate_run(folder / "foreign", [foreign], settings(), model=MODEL),
        "laion": simulate_run(folder / "laion", sets, settings(), model="ViT-B-16/laion2b_s34b_b88k"),
        "tiny": simulate_run(folder / "tiny", sets, settings()),
    }


def one(folder: Path, paper: str = "cots", subset: Subset | None = None) -> Beside:
    (found,) = set_beside(open_results([folder]), get_paper(paper), subset)
    return found


def rows_of(table: Beside) -> dict[tuple[str, str], BesideRow]:
    return {(row.dataset, row.theirs): row for row in table.rows}


def test_each_data_set_that_both_have(runs: dict[str, Path]) -> None:
    results, table = open_results([runs["sets"]]), one(runs["sets"])
    rows = rows_of(table)
    assert list(rows) == [
        ("dtd", "zero-shot"), ("dtd", "tpt+e-cots"), ("dtd", "o-tpt"),
        ("pets", "zero-shot"), ("pets", "tpt+e-cots"), ("pets", "o-tpt"),
    ]  # fmt: skip
    assert rows["dtd", "tpt+e-cots"].method == "cots+tpt+weak-strong"
    printed = {("dtd", "zero-shot"): (None, 8.24), ("dtd", "tpt+e-cots"): (47.32, 6.94), ("dtd", "o-tpt"): (None, 7.66),
               ("pets", "zero-shot"): (None, 4.45), ("pets", "tpt+e-cots"): (86.94, 3.43),
               ("pets", "o-tpt"): (None, 2.13)}  # fmt: skip
    for (dataset, theirs), row in rows.items():
        score = results.score(ResultKey(dataset, 0, PROMPT, row.method))
        for metric, value in zip(("accuracy", "ece"), printed[dataset, theirs], strict=True):
            entry = row.entries[metric]
            assert entry.value == 100.0 * getattr(score.metrics, metric)
            assert entry.paper == value
            assert entry.difference == (None if value is None else entry.value - value)
    assert rows["dtd", "tpt+e-cots"].measured == "the authors' own"
    lacking = "imagenet, flowers102, food101, sun397, aircraft, caltech101, ucf101, eurosat, cars"
    assert table.notes[-1] == (f"Of zero-shot+weak-strong, tpt the paper has averages only; they also need {lacking}.")


def test_averages_over_exactly_the_papers_sets(runs: dict[str, Path]) -> None:
    results, rows = open_results([runs["shifts"]]), rows_of(one(runs["shifts"]))
    row = rows["average", "tpt"]
    for metric, printed in (("accuracy", 60.74), ("ece", 11.90)):
        own = [getattr(results.score(ResultKey(name, 0, PROMPT, "tpt")).metrics, metric) for name in SHIFTS]
        assert row.entries[metric].value == pytest.approx(100.0 * mean(own), rel=1e-12)
        assert row.entries[metric].paper == printed
    assert rows["average", "zero-shot+weak-strong"].method == "weak-strong"
    assert rows["imagenet-r", "tpt+e-cots"].entries["accuracy"].paper == 77.88
    part = rows_of(one(runs["shifts"], subset=Subset(datasets=SHIFTS[:3])))
    assert not any(dataset == "average" for dataset, _ in part)
    quoted = rows_of(one(runs["shifts"], "quoted", Subset(methods=["tpt"])))
    average = quoted["average", "tpt"].entries["accuracy"].paper
    assert average == pytest.approx((54.77 + 63.45 + 77.06 + 47.94) / 4), "of its row, since no average is printed"


def test_the_protocol_and_what_differs(runs: dict[str, Path]) -> None:
    notes = one(runs["sets"]).notes
    assert notes[0] == (
        "Liang et al., Bridging the Confidence Gap, 2026 (read in the paper): ViT-B/16, prompt 'a photo of a', 64 "
        "views, AugMix on for fine-grained sets, off for shifts, 3 seeds, 20 bins; inferred: AugMix, bins."
    )
    assert notes[1] == (
        "Measured: zero-shot, o-tpt: re-run of the official code with its own settings; tpt+e-cots: the authors' own."
    )
    assert notes[2] == ("The runs differ: 1 seed in place of 3; 12 of 1692 images of dtd; 12 of 3669 images of pets.")
    table = one(runs["other"])
    assert table.notes[2] == (
        "The runs differ: 2 seeds in place of 3; 15 bins in place of 20; 12 of 1692 images of dtd; 32 views in place "
        "of 64; AugMix off for dtd; 12 of 3669 images of pets; AugMix off for pets."
    )
    assert "¹ with the prompt 'an example of'; the paper's is 'a photo of a'." in table.notes
    assert len(table.rows) == 12
    assert len(one(runs["other"], subset=Subset(prompt=PROMPT)).rows) == 6
    assert one(runs["shifts"]).notes[2].startswith("The runs differ: 1 seed in place of 3; 12 of 7500 images")
    assert "AugMix" not in one(runs["shifts"]).notes[2]


def test_errata_are_marked(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ten = get_paper("quoted").table("sets", "ViT-B/16").datasets
    changed = settings(methods=[named("tpt", "zero"), "tpt"])
    folder = simulate_run(tmp_path / "ten", [registered(name) for name in ten], changed, model=MODEL)
    row = rows_of(one(folder, "quoted"))["average", "zero"]
    assert row.entries["accuracy"].wrong
    note = "! 64.66 as Acc. of zero, elsewhere 64.12: the mean of its row, which is not printed here."
    assert note in one(folder, "quoted").notes
    code, out, _ = run(capsys, "table", folder, "--paper", "quoted")
    assert code == 0
    assert [line.split()[2] for line in out.splitlines() if " zero " in line] == ["64.66!"]


def test_it_fits_80_columns(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("sets", "shifts", "other"):
        code, out, err = run(capsys, "table", runs[name], "--paper", "cots")
        assert (code, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 80
    lines = out.splitlines()
    assert lines[1].split() == ["Set", "Method", "Acc.", "theirs", "diff.", "ECE", "theirs", "diff."]
    assert [line.split()[:2] for line in lines[2:4]] == [["DTD", "zero-shot"], ["zero-shot¹", lines[3].split()[1]]]


@pytest.mark.parametrize("form", ["markdown", "latex", "csv", "json"])
def test_other_formats(form: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suffix = {"markdown": ".md", "latex": ".tex", "csv": ".csv", "json": ".json"}[form]
    file = tmp_path / f"table{suffix}"
    code, out, _ = run(capsys, "table", runs["sets"], "--paper", "cots", "--out", file)
    assert (code, out) == (0, "")
    text = file.read_text(encoding="utf-8")
    table = one(runs["sets"])
    expected = rows_of(table)["pets", "o-tpt"].entries["ece"]
    if form == "json":
        (data,) = json.loads(text)
        row = next(each for each in data["rows"] if (each["dataset"], each["method"]) == ("pets", "o-tpt"))
        assert row["ece"]["value"] == expected.value
        assert row["ece"]["difference"] == expected.value - 2.13
        assert (data["paper"], data["table"], data["protocol"]["seeds"]) == ("cots", "sets", 3)
    elif form == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        row = next(
            each for each in rows if (each["dataset"], each["method"], each["metric"]) == ("pets", "o-tpt", "ece")
        )
        assert float(row["value"]) == expected.value
        assert float(row["paper_value"]) == 2.13
        assert next(each["paper_value"] for each in rows if each["metric"] == "accuracy") == ""
    else:
        cells = {"markdown": "| o-tpt | {} | – | – |", "latex": r"o-tpt & {} & -- & -- &"}[form]
        accuracy = rows_of(table)["dtd", "o-tpt"].entries["accuracy"].value
        assert cells.format(f"{accuracy:.2f}") in text
        assert text.count({"markdown": "| --: |", "latex": r"\midrule"}[form]) == {"markdown": 3, "latex": 2}[form]


WRONG = {
    ("sets", "soc"): r"'soc': on ViT-B/16 it has soc, and the runs hold zero-shot, tpt",
    (
        "sets",
        "tta-vlm",
    ): r"'tta-vlm' has numbers of RN50 with OpenAI's weights, and these runs are of 'ViT-B-16/openai'",
    ("tiny", "cots"): r"numbers of ViT-B/16, RN50 or SigLIP with OpenAI's weights, and these runs are of 'tiny-vit'",
    ("laion", "cots"): r"these runs are of 'ViT-B-16/laion2b_s34b_b88k'; evaluate with one of those backbones",
    ("foreign", "cots"): r"they lack imagenet-a, imagenet-v2.*; not registered data sets with their own classes: dtd",
    ("sets", "a-tpt"): r"on ViT-B/16 it has a-tpt, and the runs hold zero-shot, tpt, o-tpt",
    ("sets", "fpp"): r"ViT-B/16 numbers of zero-shot, tpt, o-tpt they lack flowers102, food101",
    ("sets", "tca"): r"its averages of tpt are over data sets that are not known here",
}


@pytest.mark.parametrize(("run_name", "paper"), WRONG)
def test_what_is_missing_is_said(run_name: str, paper: str, runs: dict[str, Path]) -> None:
    with pytest.raises(OtptError, match=WRONG[run_name, paper]):
        one(runs[run_name], paper)


BAD = {
    ("--paper", "cost"): "Unknown paper 'cost'. Did you mean: cots",
    ("--paper", "cots", "--layout", "sce"): "--layout goes with tables in the O-TPT paper's layouts; leave it out",
    ("--paper", "cots", "--paper-backbone", "RN50"): "--paper-backbone goes with tables in the O-TPT paper's layouts",
    ("--paper", "cots", "--methods", "c-tpt"): "Unknown method 'c-tpt'. Did you mean: o-tpt, tpt?",
    ("--paper", "cots", "--datasets", "cars"): "Unknown data set 'cars'",
    ("--paper", "cots", "--prompt", "a"): "Unknown prompt 'a'",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_bad_input(options: tuple[str, ...], runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "table", runs["sets"], *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert BAD[options] in err


def test_folders_stand_before_the_option(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "table", "--paper", runs["sets"])
    assert code == 2
    assert "Run folders stand before --paper" in err
    plain = run(capsys, "table", runs["sets"], "--paper", "--datasets", "dtd")
    assert plain == run(capsys, "table", runs["sets"], "--paper", "otpt", "--datasets", "dtd")
    assert "printed Avg" in plain[1]
