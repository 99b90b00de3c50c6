"""Simulated runs, also of the methods and data sets that only the paper has."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.runs.report_bench import METHODS, SMALL_SETS, named, opened, results
from oracles.runs.report_bench import runs as report_runs
from oracles.runs.simulated_runs import registered, simulate_run, simulated_dataset

from otpt.evaluation import Evaluation
from otpt.report import Results, open_results

__all__ = ["opened", "report_runs", "results", "runs"]

STARTS = ("coop", "maple", "baple", "fpt", "promptsmooth")


@pytest.fixture(scope="session")
def runs(report_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("papers")
    special = [
        *("tpt", "o-tpt", "o-tpt-rows", "o-tpt+c-tpt"),
        *(named("tpt", name) for name in ("coop+tpt", "maple+tpt", "baple", "fpt", "promptsmooth")),
        *(named("o-tpt", f"{name}+o-tpt") for name in STARTS),
    ]
    shifts = [simulated_dataset(name, 5, 15) for name in ("imagenet-r", "imagenet-a")]
    clinic = [simulated_dataset(name, 5, 15) for name in ("kather-500", "covid", "isic2018")]
    requests = {
        "special": (SMALL_SETS, Evaluation(methods=special)),
        "shifts": (shifts, Evaluation(methods=METHODS)),
        "medical": (clinic, Evaluation(methods=special)),
    }
    return {**report_runs, **{name: simulate_run(folder / name, *request) for name, request in requests.items()}}


@pytest.fixture(scope="session")
def paper_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A run that follows the paper on DTD, and has too few images of other sets; "own" is none of the paper's."""
    sets = [
        simulated_dataset("own", 5, 20),
        registered("dtd", 1692),
        registered("flowers102"),
        registered("caltech101"),
    ]
    request = Evaluation(methods=METHODS, official_precision=True, official_orientation=True)
    folder = tmp_path_factory.mktemp("paper") / "run"
    return open_results([simulate_run(folder, sets, request, model="ViT-B-16/openai")])
