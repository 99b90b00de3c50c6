"""Formats: names and numbers survive them, whatever the names hold."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace

import pandas as pd
import pytest

from otpt import OtptError
from otpt.escapes import csv_cell
from otpt.report import Results, Table, build_tables, render
from otpt.report.formats import text_table

NASTY = ["=cmd|' /C calc'!A0", "a|b*c_d", "100 % & $x$ #1", "<b>\u202eevil\n</b>", "ß" * 200]


@pytest.fixture(scope="module")
def table(results: Results) -> Table:
    return build_tables(results, "plain", level=0.9)[0]


def renamed(table: Table, name: str) -> Table:
    return replace(table, cells=table.cells.replace({"method": {"o-tpt": name}}))


def test_csv_has_every_number_unrounded(table: Table) -> None:
    frame = pd.read_csv(io.StringIO(table.to_csv()))
    for kind in ("value", "deviation", "low", "high"):
        own = frame[frame["kind"] == kind].set_index(["method", "metric"])
        for cell in table.cells.dropna(subset=[kind]).itertuples():
            assert own.loc[(cell.method, cell.metric), cell.dataset] == pytest.approx(getattr(cell, kind), rel=1e-14)


def test_json_is_lossless(table: Table) -> None:
    data = json.loads(replace(table, cells=table.cells.assign(low=math.nan)).to_json())
    first, cell = data["cells"][0], table.cells.iloc[0]
    assert (data["level"], first["low"]) == (0.9, None)
    assert {name: first[name] for name in ("value", "high", "best")} == dict(cell[["value", "high", "best"]])


def test_text_markdown_and_latex_show_the_same_numbers(table: Table) -> None:
    numbers = [re.findall(r"\d+\.\d\d", text) for text in (table.to_text(), table.to_markdown(), table.to_latex())]
    assert numbers[0] == numbers[1] == numbers[2]
    best = int(table.cells["best"].sum())
    assert table.to_latex().count(r"\textbf{") == table.to_markdown().count("**") // 2 - 1 == best
    assert "booktabs" in table.to_latex()
    assert table.to_latex().count(r"\midrule") == len(set(table.cells["method"]))


@pytest.mark.parametrize("name", NASTY)
def test_any_name(table: Table, name: str) -> None:
    own = renamed(table, name)
    for line in own.to_markdown().splitlines():
        if line.startswith("| "):
            assert len(re.findall(r"(?<!\\)\|", line)) == 7
    body = own.to_latex().split("\\midrule\n")[1]
    for line in body.splitlines()[: 3 * 8]:
        if line.endswith(r"\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == 5
    rows = list(csv.reader(io.StringIO(own.to_csv())))
    assert {len(row) for row in rows} == {9}
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row)
    assert "\u202e" not in own.to_text()


def test_csv_guard() -> None:
    for text in ("=1+1", "+1", "-1", "@x", "\tx", " =x"):
        assert csv_cell(text) == f"'{text}"
    assert csv_cell("o-tpt") == "o-tpt"


def test_wide_tables_are_continued_and_no_number_is_cut() -> None:
    strings = pd.DataFrame({"name": ["a", "bb"], **{f"column {i}": [f"{i}.25", "12345.00"] for i in range(9)}})
    text = text_table(strings, 1, 40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("12345.00") == 9
    assert text.count("bb") == text.count("name") > 1
    assert len(text_table(strings, 1).splitlines()) == 3


def test_unknown_format(table: Table) -> None:
    with pytest.raises(OtptError, match="html"):
        render([table], "html")
