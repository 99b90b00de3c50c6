"""The paper's numbers, and what in them contradicts itself: found by computation, exactly this."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otpt import OtptError
from otpt.report.papers.errata import conflicts, repeated_cells, wrong_averages
from otpt.report.papers.paper import BACKBONES, layout_tables, number, paper_numbers, paper_table, paper_tables

pytestmark = pytest.mark.slow

READ_OFF = Path(__file__).resolve().parents[3] / "../shared/spec/paper_tables.json"

# (table, method, metric): what is printed, what the row gives
WRONG_AVERAGES = {
    (2, "zero-shot", "ece"): ("4.43", 5.02),
    (2, "tpt", "ece"): ("11.6", 9.87),
    (2, "c-tpt", "accuracy"): ("64.57", 64.93),
    (2, "c-tpt+zs", "accuracy"): ("64.51", 64.49),
    (3, "c-tpt+sals", "accuracy"): ("57.20", 57.46),
    (3, "c-tpt+sals", "ece"): ("6.82", 4.48),
    (6, "coop+o-tpt", "accuracy"): ("63.14", 63.30),
    (8, "o-tpt-rows", "accuracy"): ("64.34", 64.43),
    (10, "o-tpt", "sce"): ("1.07", 1.15),
    (12, "zero-shot", "ece"): ("7.01", 6.49),
    (13, "zero-shot", "accuracy"): ("60.24", 53.87),
    (14, "zero-shot", "ece"): ("5.64", 5.19),
    (15, "zero-shot", "accuracy"): ("48.45", 54.03),
}
REPEATED = {
    (2, "ece", ("tpt", "c-tpt"), ("ucf101",), "2.54"),
    (2, "ece", ("tpt", "c-tpt"), ("eurosat",), "13.2"),
    (2, "accuracy", ("c-tpt+sals", "c-tpt+penalty"), ("imagenet",), "68.04"),
    (2, "ece", ("c-tpt+sals", "c-tpt+penalty"), ("imagenet",), "2.63"),
    (2, "ece", ("c-tpt",), ("flowers102", "sun397"), "5.04"),
    (8, "ece", ("o-tpt-rows", "o-tpt"), ("imagenet",), "1.96"),
    (12, "ece", ("zero-shot",), ("dtd", "pets"), "7.43"),
    (12, "ece", ("zero-shot",), ("flowers102", "cars"), "4.59"),
    (12, "ece", ("zero-shot",), ("caltech101", "eurosat"), "14.1"),
}
# Found by the same rule; each alone in its row, so they may be chance.
PERHAPS_CHANCE = {
    (6, "ece", ("coop+tpt",), ("flowers102", "ucf101"), "19.9"),
    (15, "ece", ("zero-shot",), ("aircraft", "cars"), "4.80"),
}
CONFLICTS = {
    ((1, 2), "tpt", "accuracy", "flowers102", ("69.10", "69.0")),
    ((1, 2), "c-tpt", "ece", "flowers102", ("5.06", "5.04")),
    ((9, 10), "zero-shot", "sce", "dtd", ("1.34", "1.33")),
    ((9, 10), "tpt", "sce", "dtd", ("1.42", "1.44")),
    ((9, 10), "tpt", "sce", "flowers102", ("0.50", "0.51")),
}


def test_every_printed_number_is_there() -> None:
    if not READ_OFF.is_file():
        pytest.skip("the numbers read off the paper are not beside the repository")
    records = json.loads(READ_OFF.read_text(encoding="utf-8"))["records"]
    by_table: dict[tuple[int, str], list[str]] = {}
    for record in records:
        half = record["backbone"] if record["table"] == 4 else ""
        by_table.setdefault((record["table"], half), []).append(record["as_printed"])
    ours = {
        (t.number, t.backbone if t.number == 4 else ""): [v for m in t.rows.values() for row in m.values() for v in row]
        for t in paper_tables()
    }
    assert ours == by_table  # the same numbers in the same order


def test_numbers_stand_where_the_paper_has_them() -> None:
    assert [t.number for t in paper_tables()] == [1, 2, 3, 4, 4, *range(5, 20)]
    assert paper_table(2).printed("o-tpt", "ece", "dtd") == "7.88"
    assert paper_table(3).value("c-tpt+penalty", "accuracy", "eurosat") == 26.64
    assert paper_table(4, "RN50").value("zero-shot", "ece", "imagenet-a") == 21.3
    assert paper_table(7).value("maple+o-tpt", "ece", "cars") == 3.61
    assert paper_table(14).printed_average("c-tpt", "ece") == "4..93"
    assert number("4..93") == 4.93
    assert paper_table(17).value("baple+o-tpt", "ece", "covid") == 5.97
    assert paper_table(16).printed_average("o-tpt", "ece") is None
    assert paper_table(2).value("o-tpt", "sce", "dtd") is None
    assert paper_table(2).mean("o-tpt", "ece", ["dtd", "cars"]) == pytest.approx((7.88 + 1.78) / 2)
    assert paper_table(2).mean("o-tpt", "ece", ["dtd", "own"]) is None
    rows = paper_numbers(16, methods=["o-tpt+c-tpt"], metric="ece")
    assert [(row["dataset"], row["value"]) for row in rows] == [("dtd", 7.06), ("flowers102", 3.41), ("ucf101", 2.14)]
    assert [row["dataset"] for row in paper_numbers(9, methods=["tpt"])][-1] == "average"


def test_tables_of_a_layout() -> None:
    assert [[t.number for t in layout_tables("prompts", backbone)] for backbone in BACKBONES] == [[12, 14], [13, 15]]
    assert [t.number for t in layout_tables("medical", "RN50")] == [17, 18, 19]
    assert layout_tables("nothing", None) == []


def test_thirteen_averages_do_not_follow_from_their_rows() -> None:
    found = {(w.table, w.method, w.metric): (w.printed, round(w.mean, 2)) for w in wrong_averages()}
    assert found == WRONG_AVERAGES
    assert sum(t.average * len(t.methods) * len(t.metrics) for t in paper_tables()) == 106


def test_repeated_cells() -> None:
    found = {(r.table, r.metric, r.methods, r.datasets, r.printed) for r in repeated_cells()}
    assert found == REPEATED | PERHAPS_CHANCE


def test_conflicting_cells() -> None:
    assert {(c.tables, c.method, c.metric, c.dataset, c.printed) for c in conflicts()} == CONFLICTS


def test_unknown_tables() -> None:
    with pytest.raises(OtptError, match=r"Unknown table of the paper '20'\..* Available: 1, 2, 3, 4, 5"):
        paper_table(20)
    with pytest.raises(OtptError, match="Table 4 has ViT-B/16 and RN50; say which backbone"):
        paper_numbers(4)
    with pytest.raises(OtptError, match=r"Unknown backbone of Table 2 'RN50'.* Available: ViT-B/16"):
        paper_table(2, "RN50")
