"""The frame of the reliability campaign: bounds, counts, the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from torture.campaign import run_part
from torture.page import PAGE, fault_table, faults, table
from torture.parts import PARTS
from torture.records import Case, Outcome, PartOptions
from torture.results import RESULTS, read

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def endless(options: PartOptions) -> Iterator[Outcome]:
    number = options.seed
    while True:
        ok = number % 3 != 0
        yield Outcome(Case("odd" if number % 2 else "even", number), "fine" if ok else "bad", ok, "why", 0.5)
        number += 1


def test_a_part_ends_after_its_cases_or_minutes_and_is_counted(tmp_path: Path) -> None:
    said: list[str] = []
    tally = run_part("kills", endless, PartOptions(tmp_path, cases=6, seed=1), said.append)
    assert (tally.cases, tally.failing.total(), tally.seconds) == (6, 2, 3.0)
    assert [line.split(":")[0] for line in said] == ["FAILED odd (seed 3; )", "FAILED even (seed 6; )"]
    tally.write(tmp_path / "kills.json")
    again = run_part(
        "kills", endless, PartOptions(tmp_path, cases=2, seed=7), said.append, read(tmp_path / "kills.json")
    )
    assert (again.cases, again.seeds) == (8, [[1, 8]])
    far = run_part(
        "kills", endless, PartOptions(tmp_path, cases=1, seed=50), said.append, read(tmp_path / "kills.json")
    )
    assert far.seeds == [[1, 6], [50, 50]]
    assert run_part("kills", endless, PartOptions(tmp_path, minutes=0.0), said.append).cases == 1
    soak = run_part("soak", endless, PartOptions(tmp_path, cases=3, minutes=0.0), said.append)
    assert soak.cases == 3  # judged in the end
    assert table(tally).splitlines()[2:] == [
        "| even | 3 | fine: 2; bad: 1 | 1 |",
        "| odd | 3 | fine: 2; bad: 1 | 1 |",
        "| **all** | **6** | in 3 s, seeds 1 to 6 | **2** |",
    ]


def test_the_page_shows_the_stored_counts() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert {path.stem for path in RESULTS.glob("*.json")} == set(PARTS)
    for name in PARTS:
        assert table(read(RESULTS / f"{name}.json")) in page
    assert fault_table(faults()) in page


def test_every_fault_is_held_by_a_test_that_exists() -> None:
    for fault in faults():
        path, _, name = fault["test"].partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), fault
