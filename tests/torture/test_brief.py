"""A few cases of each part of the reliability campaign, always the same ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from otpt.methods import field_methods, published_methods
from torture.inside import outcomes
from torture.records import PartOptions
from torture.shim import compiler
from torture.soak import Sample, judge, run

pytestmark = pytest.mark.long

NEED_FILES = {"attributes", "tca", "tca-single", "coop", "cocoop", "maple", "baple", "fpt", "promptsmooth"}


@pytest.mark.skipif(not sys.platform.startswith("linux") or compiler() is None, reason="needs Linux and a C compiler")
def test_killed_disturbed_damaged_and_crowded_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    found = list(outcomes("torture.brief", PartOptions(tmp_path)))
    assert [outcome for outcome in found if not outcome.ok] == []
    assert len(found) >= 60


def samples(mebibytes: list[float], handles: int = 9, threads: int = 3) -> list[Sample]:
    return [Sample(1000 * i, each, handles, threads) for i, each in enumerate(mebibytes)]


def test_growth_is_told_from_noise() -> None:
    early = [500.0 + min(i, 5) * 40 for i in range(20)]  # until everything has been used once
    assert all(flat for flat, _ in judge(samples([each + i % 3 for i, each in enumerate(early)])).values())
    assert not judge(samples([each + 10 * i for i, each in enumerate(early)]))["memory"][0]
    leaking = [*samples(early[:15]), *(Sample(1000 * i, 700, 9 + i, 3) for i in range(15, 20))]
    assert {name: flat for name, (flat, _) in judge(leaking).items()} == {
        "memory": True,
        "file handles": False,
        "threads": True,
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_the_soak_goes_through_every_method(tmp_path: Path) -> None:
    outcomes_of_soak = list(run(PartOptions(tmp_path, images=2)))
    assert [outcome.case.kind for outcome in outcomes_of_soak] == ["memory", "file handles", "threads"]
    names = [name for name in {**published_methods(), **field_methods()} if not NEED_FILES & set(name.split("+"))]
    assert outcomes_of_soak[0].case.detail == f"{2 * len(names)} predictions by {len(names)} methods"
