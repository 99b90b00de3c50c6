"""Tables as text: what is written is what is meant, whatever names people chose."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from oracles.command import run
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt.evaluation import Settings
from otpt.methods import get_method
from otpt.report import open_results
from otpt.report.tables.building import Choice, build_tables
from otpt.report.tables.escaping import csv_text, latex, markdown, plain
from otpt.report.tables.formats import render
from otpt.report.tables.table import Table

pytestmark = pytest.mark.slow

HOSTILE = '=HYPERLINK("x")|<b>&amp;_$\\{}%#^~*`\u202eevil\n![x](y)'
SETS = [simulated_dataset("dtd", 4, 24), simulated_dataset(HOSTILE, 4, 24)]
METHODS = ("zero-shot", "tpt", replace(get_method("o-tpt"), name="@mine|**bold**"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    path = simulate_run(
        tmp_path_factory.mktemp("formats") / "run", SETS, Settings(methods=METHODS, seeds=(0, 1), shard_size=12)
    )
    (found,) = build_tables(open_results([path]), "main", Choice(paper="ViT-B/16", level=0.9))
    return found


def expected(table: Table) -> list[list[str]]:
    """The lines that every format for readers has: numbers of two decimals, in the order of the layout."""
    lines = []
    for line in table.lines:
        blocks = [[f"{e.value:.2f} ± {e.deviation:.2f}" if e.value is not None else "–" for e in line.entries]]
        blocks.append([f"{e.low:.2f}–{e.high:.2f}" if e.low is not None else "–" for e in line.entries])
        if line.method in ("zero-shot", "tpt"):
            blocks.append([(f"{e.paper:.2f}" if e.paper is not None else "–") + " !" * e.wrong for e in line.entries])
            signed = [e.difference for e in line.entries]
            blocks.append(["–" if d is None else f"{d:+.2f}".replace("-", "−") for d in signed])
        lines += blocks
    return lines


def cells_of_latex(line: str) -> list[str]:
    cells = re.split(r"(?<!\\) & ", line.removesuffix(r" \\"))
    marks = {r"$\pm$": "±", r"$-$": "−", "--": "–"}
    for mark, letter in marks.items():
        cells = [cell.replace(mark, letter) for cell in cells]
    return [re.sub(r"\\textbf\{(.*)\}", r"\1", cell) for cell in cells]


def test_latex(table: Table) -> None:
    text = render([table], "latex")
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")].splitlines()
    rows = [cells_of_latex(line) for line in body if line.endswith(r"\\")]
    assert rows[0][:3] == ["Method", "Metric", "DTD"]
    assert [row[2:] for row in rows[1:]] == expected(table)
    assert body.count(r"\midrule") == len(METHODS)
    assert text.count(r"\begin{tabular}{llrrrr}") == 1
    best = sum(entry.best for line in table.lines for entry in line.entries)
    assert text.count(r"\textbf{") == best > 0
    assert r"=HYPERLINK(\textquotedbl{}x\textquotedbl{})\textbar{}\textless{}b\textgreater{}\&amp;\_\$" in text
    bare = re.sub(r"\\[\\{}$&#%_]", "", text.replace(r"$\pm$", "").replace(r"$-$", ""))
    assert not set("$#%^~|<>") & set(bare), "nothing that LaTeX would take for its own"
    assert bare.count("{") == bare.count("}")


def test_markdown(table: Table) -> None:
    lines = render([table], "markdown").splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} == {2 + len(table.columns)}
    cells = [[cell.strip().strip("*") for cell in row] for row in rows]
    assert [row[2:] for row in cells[2:]] == expected(table)
    assert [row[0].strip() for row in rows[2:] if row[0].strip()] == ["Zero-shot", "TPT", r"@mine\|\*\*bold\*\*"]
    heads = cells[0][3]
    assert r"\<b\>" in heads
    assert r"\!\[x\]\(y\)" in heads
    assert "\u202e" not in heads
    best = {(i, j) for i, row in enumerate(rows[2:]) for j, cell in enumerate(row[2:]) if cell.strip().startswith("**")}
    assert len(best) == sum(entry.best for line in table.lines for entry in line.entries)


def test_terminal(table: Table) -> None:
    lines = render([table], "terminal").splitlines()
    rows = [line for line in lines[2:] if re.search(r"(Acc\.|ECE|– 90 %|– paper|– difference)  ", line)]
    starred = [re.sub(r"\s{2,}", "\t", line).split("\t")[-len(table.columns) :] for line in rows]
    plain_rows = [[cell.strip().removesuffix("*") for cell in row] for row in starred]
    assert plain_rows == expected(table)
    assert sum(cell.endswith("*") for row in starred for cell in row) == sum(
        entry.best for line in table.lines for entry in line.entries
    )
    assert "\u202e" not in "".join(lines)


def test_csv(table: Table) -> None:
    found = pd.read_csv(io.StringIO(render([table], "csv")))
    assert list(found.columns[:5]) == ["table", "method", "metric", "kind", "dtd"]
    assert found.columns[5].startswith("'=HYPERLINK")
    assert found["method"].unique().tolist() == ["zero-shot", "tpt", "'@mine|**bold**"]
    keyed = found.set_index(["method", "metric", "kind"])
    for line in table.lines:
        for kind in ("value", "deviation", "low", "high"):
            row = keyed.loc[(csv_text(line.method), line.metric, kind)]
            numbers = [None if pd.isna(number) else number for number in row.iloc[1:-1]]
            expected = [getattr(entry, kind) for entry in line.entries]
            for number, own in zip(numbers, expected, strict=True):  # pandas may lose the last bit
                assert number is own is None or number == pytest.approx(own, rel=1e-15, abs=0), "unrounded"
    assert keyed.loc[("tpt", "ece", "paper"), "dtd"] == 21.2
    for row in csv.reader(io.StringIO(render([table], "csv"))):
        assert not any(re.match(r"[=@\t\r]|[+-](?!\d)", cell) for cell in row)


def test_json(table: Table) -> None:
    (found,) = json.loads(render([table], "json"))
    assert (found["layout"], found["paper_table"], found["level"]) == ("main", 2, 0.9)
    for line, read in zip(table.lines, found["lines"], strict=True):
        assert (read["method"], read["metric"]) == (line.method, line.metric)
        for column, entry in zip(table.columns, line.entries, strict=True):
            shown = read["entries"][column.key]
            assert (shown["value"], shown["paper"], shown["best"], shown["wrong"]) == (
                entry.value, entry.paper, entry.best, entry.wrong,
            )  # fmt: skip
            assert shown["difference"] == entry.difference


def test_a_run_in_progress_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = [simulated_dataset("dtd", 4, 24), simulated_dataset("own", 4, 24)]
    path = simulate_run(tmp_path / "run", data, Settings(methods=("zero-shot", "tpt"), shard_size=12), items=3)
    code, out, err = run(capsys, "table", path, "--format", "markdown")
    assert code == 3
    assert "is in progress: 36 of 48 images are done" in err
    row = next(line for line in out.splitlines() if line.startswith("| TPT"))
    dtd, own, average = (cell.strip(" *") for cell in row.split("|")[3:6])
    assert not dtd.endswith("…")
    assert own.endswith("…")
    assert average.endswith("…")
    assert "has 36 of 48 images" in out.replace("\\", "")
    rows = list(csv.DictReader(io.StringIO(run(capsys, "table", path, "--format", "csv")[1])))
    assert {row["notes"] for row in rows} == {"in progress: own; average"}
    entries = json.loads(run(capsys, "table", path, "--format", "json")[1])[0]["lines"][0]["entries"]
    assert {key: entry["partial"] for key, entry in entries.items()} == {"dtd": False, "own": True, "average": True}
    simulate_run(tmp_path / "begun", data, Settings(methods=("zero-shot", "tpt"), shard_size=12), items=1)
    text = run(capsys, "table", tmp_path / "begun", "--format", "markdown")[1]
    row = next(line for line in text.splitlines() if line.startswith("| TPT"))
    assert [cell.strip(" *") for cell in row.split("|")[4:6]] == ["–", "–"], "nothing is known of 'own' yet"


def test_escaping() -> None:
    assert plain("a\tb\n c\u202e\u200b") == "a b c"
    assert len(plain("x" * 500)) == 80
    assert latex(r"50% of $x_1$ & \input{y}") == r"50\% of \$x\_1\$ \& \textbackslash{}input\{y\}"
    assert markdown("<img src=x>|a*b*") == r"\<img src=x\>\|a\*b\*"
    assert [csv_text(text) for text in ("=1+1", "+1", "-1", "@x", "\t=1", "a=1")] == [
        "'=1+1", "'+1", "'-1", "'@x", "'=1", "a=1",
    ]  # fmt: skip


def test_unknown_format(table: Table) -> None:
    with pytest.raises(ValueError, match=r"Unknown format 'html'.* Available: terminal, markdown, csv, latex, json"):
        render([table], "html")
