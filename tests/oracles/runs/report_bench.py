"""Small simulated runs for the tests of reports, made once: predictions without a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oracles.runs.simulated_runs import simulate_run, simulated_dataset, simulated_output

from otpt.evaluation import Evaluation
from otpt.methods import Method, get_method
from otpt.report import Results, open_results

METHODS = ("zero-shot", "o-tpt", "tpt", "c-tpt")
PROMPTS = ("a photo of a", "an example of", "an icon of", "a drawing of a")
SETS = [simulated_dataset(name, 5, 60) for name in ("own", "flowers102", "dtd")]
SMALL_SETS = [simulated_dataset(name, 5, 15) for name in ("flowers102", "dtd")]
SEEDS = (0, 5)


def named(method: str, name: str) -> Method:
    """A method under another name."""
    return replace(get_method(method), name=name)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For the folders of tests that import it, as the next ones."""
    folder = tmp_path_factory.mktemp("report")
    sweep = [named("o-tpt", f"o-tpt[lambda={weight}]") for weight in (18, 0, 2)]
    grid = [named("o-tpt", f"o-tpt[views={views},lambda={weight}]") for views in (8, 32) for weight in (18, 0, 2)]
    requests = {
        "main": (SETS, Evaluation(methods=METHODS, seeds=SEEDS)),
        "prompts": (SMALL_SETS, Evaluation(methods=METHODS[:2], prompts=PROMPTS)),
        "sweep": (SMALL_SETS, Evaluation(methods=["zero-shot", *sweep])),
        "grid": (SMALL_SETS, Evaluation(methods=["zero-shot", *grid])),
    }
    return {name: simulate_run(folder / name, *request) for name, request in requests.items()}


@pytest.fixture(scope="session")
def opened(runs: dict[str, Path]) -> dict[str, Results]:
    return {name: open_results([folder]) for name, folder in runs.items()}


@pytest.fixture(scope="session")
def results(opened: dict[str, Results]) -> Results:
    return opened["main"]


def probabilities(position: int, method: str, seed: int) -> np.ndarray:
    """All probabilities (N, C) that the main run was made of."""
    data, column = SETS[position], ("a photo of a", method)
    return np.array([simulated_output(data, i, column, seed).probabilities for i in range(len(data))])
