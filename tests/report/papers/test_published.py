"""Published numbers of the field: as printed, averages that follow from their rows, names and protocols in order."""

from __future__ import annotations

import re
from decimal import Decimal
from importlib import resources
from pathlib import Path

import pytest

from otpt import OtptError
from otpt.data.registered.entry import find_entry
from otpt.report.papers import published
from otpt.report.papers.errata import wrong_averages
from otpt.report.papers.paper import PaperTable
from otpt.report.papers.published import PAPERS, get_paper, method_key

pytestmark = pytest.mark.slow

READ_OFF = Path(__file__).resolve().parents[3] / "../shared/spec"

# What stands in the papers: (paper, table, backbone, method, metric, data set or None for the average) → as printed
PRINTED = {
    ("cots", "sets", "ViT-B/16", "zero-shot", "ece", "eurosat"): "7.10",
    ("cots", "sets", "ViT-B/16", "zero-shot+weak-strong", "accuracy", None): "65.21",
    ("cots", "sets", "ViT-B/16", "o-tpt", "ece", "sun397"): "8.42",
    ("cots", "sets", "ViT-B/16", "tpt+e-cots", "accuracy", "imagenet"): "69.49",
    ("cots", "sets", "ViT-B/16", "tpt+cots", "ece", "caltech101"): "6.13",
    ("cots", "sets", "ViT-B/16", "soc", "ece", "cars"): "4.63",
    ("cots", "sets", "ViT-B/16", "tpt+penalty+e-cots", "ece", None): "3.86",
    ("cots", "shifts", "ViT-B/16", "o-tpt+cots", "ece", None): "4.14",
    ("cots", "shifts", "ViT-B/16", "tpt+e-cots", "ece", "imagenet-sketch"): "6.11",
    ("cots", "shifts", "RN50", "tpt+e-cots", "accuracy", None): "45.39",
    ("cots", "coop-shifts", "ViT-B/16", "coop+o-tpt+e-cots", "ece", None): "4.26",
    ("cots", "tda", "ViT-B/16", "tda+e-cots", "accuracy", None): "66.56",
    ("cots", "seconds", "ViT-B/16", "o-tpt", "seconds", "imagenet-a"): "0.258",
    ("tta-vlm", "sets", "RN50", "tps", "ece", None): "21.16",
    ("tta-vlm", "family", "RN50", "boostadapter", "accuracy", None): "48.07",
    ("fpp", "sets", "ViT-B/16", "fpp+tpt", "sce", None): "0.96",
    ("fpp", "maple", "ViT-B/16", "maple+fpp+tpt", "accuracy", None): "67.01",
    ("a-tpt", "shifts", "RN50", "a-tpt", "ece", None): "7.82",
    ("soc", "sets", "ViT-L/14", "soc", "ece", None): "5.4",
    ("zero", "shifts", "ViT-B/16", "zero", "accuracy", "imagenet-r"): "77.28",
    ("mta", "sets", "ViT-B/16", "mta", "accuracy", "aircraft"): "25.32",
    ("mta", "sets", "ViT-B/16", "mta", "accuracy", "sun397"): "64.98",
    ("sts", "sets", "ViT-B/16", "tps", "accuracy", None): "63.49",
    ("cas", "imagenet", "ViT-B/16", "r-tpt", "accuracy", "imagenet"): "69.36",
    ("tda", "shifts", "RN50", "tda", "accuracy", "imagenet-v2"): "55.54",
    ("dmn", "imagenet", "RN50", "dmn", "accuracy", "imagenet"): "63.87",
    ("dpe", "shifts", "ViT-B/16", "dpe", "accuracy", "imagenet-a"): "59.63",
    ("tca", "average", "ViT-B/16", "tca", "ece", None): "4.11",
    ("quoted", "shifts", "ViT-B/16", "promptalign", "accuracy", "imagenet-a"): "59.37",
}
PARTS = {
    *("zero-shot", "tpt", "c-tpt", "o-tpt", "a-tpt", "soc", "tps", "sts", "r-tpt", "zero", "mta", "tda"),
    *("boostadapter", "dmn", "dpe", "fpp", "coop", "maple", "penalty", "sals", "cots", "e-cots", "weak-strong"),
}


def tables() -> list[tuple[str, PaperTable]]:
    return [(name, table) for name in PAPERS for table in get_paper(name).tables]


def test_every_file_is_a_paper() -> None:
    files = {each.name for each in resources.files(published.__package__).iterdir() if each.name.endswith(".json")}
    assert files == {"paper.json", *(f"{name}.json" for name in PAPERS)}


@pytest.mark.parametrize(("where", "printed"), PRINTED.items(), ids=lambda each: "-".join(map(str, each))[:60])
def test_numbers_stand_where_the_papers_have_them(where: tuple[str, ...], printed: str) -> None:
    paper, name, backbone, method, metric, dataset = where
    table = get_paper(paper).table(name, backbone)
    assert (table.printed(method, metric, dataset) if dataset else table.printed_average(method, metric)) == printed


def test_every_printed_number_was_read_off() -> None:
    if not READ_OFF.is_dir():
        pytest.skip("the numbers read off the papers are not beside the repository")
    text = "".join((READ_OFF / name).read_text(encoding="utf-8") for name in ("peer_methods.md", "peers.md"))
    known = set(re.findall(r"\d+(?:\.\d+)?", text))
    for name, table in tables():
        found = {cell for row in table.rows.values() for cells in row.values() for cell in cells} - {"–"}
        assert found <= known, (name, table.number)


def test_averages_follow_from_their_rows() -> None:
    computable = 0
    for name, table in tables():
        for metrics in table.rows.values():
            for *cells, average in metrics.values():
                if average != "–" and cells and "–" not in cells:
                    computable += 1
                    mean = sum(map(Decimal, cells)) / len(cells)
                    assert abs(mean - Decimal(average)) <= Decimal("0.01"), (name, table.number, average, mean)
        assert wrong_averages([table]) == []
    assert computable == 13


def test_a_wrong_average_is_found() -> None:
    rows = {"tpt": {"ece": ("1.00", "2.00", "1.60")}}
    table = PaperTable("own", "main", "ViT-B/16", "a photo of a", True, ("dtd", "pets"), rows)
    assert [(wrong.printed, wrong.mean) for wrong in wrong_averages([table])] == [("1.60", 1.5)]


def test_errata_are_of_printed_numbers() -> None:
    found = [(paper.name, each.table, each.method, each.printed, each.other) for paper in map(get_paper, PAPERS)
             for each in paper.errata]  # fmt: skip
    assert found == [
        ("cots", "tda", "tda", "65.65", "65.89"),
        ("cots", "tda", "tda", "6.78", "6.64"),
        ("cots", "sets", "c-tpt+e-cots", "64.64", "65.24"),
        ("quoted", "sets", "difftpt", "65.47", "64.92"),
        ("quoted", "sets", "zero", "64.66", "64.12"),
    ]
    for paper in map(get_paper, PAPERS):
        for each in paper.errata:
            assert paper.table(each.table, each.backbone).printed_average(each.method, each.metric) == each.printed


@pytest.mark.parametrize("name", PAPERS)
def test_names_and_protocol(name: str) -> None:
    paper = get_paper(name)
    assert set(paper.methods) == {method for table in paper.tables for method in table.methods}
    assert len({(table.number, table.backbone) for table in paper.tables}) == len(paper.tables)
    for table in paper.tables:
        entries = [find_entry(dataset) for dataset in table.datasets]
        assert [entry.name for entry in entries if entry] == list(table.datasets)
    for method in paper.methods:
        assert paper.lacks(method) or set(method.split("+")) <= PARTS, method
    assert all(any(key == m or key in m.split("+") for m in paper.methods) for key in paper.not_implemented)
    assert paper.protocol.confidence in published.CONFIDENCE
    assert set(paper.protocol.augmix) == {"fine-grained", "imagenet", "shift"}
    assert all(any(part in m.split("+") for m in paper.methods) for part in paper.protocol.own)


def test_who_measured_what() -> None:
    cots = get_paper("cots")
    assert cots.measured("tpt+e-cots") == cots.measured("zero-shot+weak-strong") == "the authors' own"
    assert cots.measured("a-tpt") == "re-run of the official code with its own settings"
    assert get_paper("zero").measured("zero") == "the authors' own"
    assert cots.lacks("ttl+cots") == cots.lacks("ttl") == "it tunes the image tower by LoRA for each image"
    assert cots.lacks("tpt+cots") is None
    assert (cots.protocol.mixes("dtd"), cots.protocol.mixes("imagenet"), cots.protocol.mixes("imagenet-r")) == (
        True, None, False,
    )  # fmt: skip


def test_names_of_one_meaning() -> None:
    assert method_key("tpt+e-cots") == method_key("weak-strong+cots+tpt") != method_key("tpt+cots")
    assert method_key("weak-strong") == method_key("zero-shot+weak-strong") != method_key("zero-shot")
    assert method_key("sals+o-tpt") == {"o-tpt", "sals"}


def test_unknown_names() -> None:
    with pytest.raises(OtptError, match=r"Unknown paper 'tta-vml'\. Did you mean: tta-vlm"):
        get_paper("tta-vml")
    with pytest.raises(OtptError, match=r"Unknown table of 'soc' 'shifts RN50'\..*Available: sets ViT-L/14"):
        get_paper("soc").table("shifts", "RN50")
