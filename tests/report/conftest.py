"""Small simulated runs, made once: predictions without a model, written as a real run writes its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oracles.runs.simulated_runs import simulate_run, simulated_dataset, simulated_output

from otpt.evaluation import Evaluation as Settings
from otpt.methods import get_method
from otpt.report import Results, open_results

METHODS = ("zero-shot", "o-tpt", "tpt", "c-tpt")
PROMPTS = ("a photo of a", "an example of", "an icon of", "a drawing of a")
SETS = [simulated_dataset(name, 5, 60) for name in ("own", "flowers102", "dtd")]
SEEDS = (0, 5)


def _named(method: str, name: str):
    return replace(get_method(method), name=name)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("report")
    sweep = [_named("o-tpt", f"o-tpt[lambda={weight}]") for weight in (18, 0, 2)]
    special = [
        *("tpt", "o-tpt", "o-tpt-rows", "o-tpt+c-tpt"),
        *(_named("tpt", name) for name in ("coop+tpt", "maple+tpt", "baple", "fpt", "promptsmooth")),
        *(_named("o-tpt", f"{name}+o-tpt") for name in ("coop", "maple", "baple", "fpt", "promptsmooth")),
    ]
    registered, shifts, clinic = (
        [simulated_dataset(name, 5, 15) for name in names]
        for names in (("flowers102", "dtd"), ("imagenet-r", "imagenet-a"), ("kather-500", "covid", "isic2018"))
    )
    made = {
        "main": (SETS, Settings(methods=METHODS, seeds=SEEDS)),
        "prompts": (registered, Settings(methods=METHODS[:2], prompts=PROMPTS)),
        "sweep": (registered, Settings(methods=["zero-shot", *sweep])),
        "special": (registered, Settings(methods=special)),
        "shifts": (shifts, Settings(methods=METHODS)),
        "medical": (clinic, Settings(methods=special)),
    }
    return {name: simulate_run(folder / name, *each) for name, each in made.items()}


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
