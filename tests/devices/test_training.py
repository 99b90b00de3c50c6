"""Training on a device that is not the CPU: the weights of the CPU, and they come back to it."""

from __future__ import annotations

import pytest
import torch
from oracles.data import medical_bench
from oracles.devices.device_bench import FROZEN, Bench, backbone_on
from oracles.devices.elsewhere import DEVICES, counted
from oracles.runs.evaluation_bench import dataset
from torch import Tensor

from otpt.learning import BapleRecipe, FptRecipe, Recipe, train_baple, train_coop, train_fpt, train_maple

pytestmark = pytest.mark.slow

RECIPE = Recipe(shots=1, epochs=1, batch=3, learning_rate=0.01, crops=2)


def coop(bench: Bench, device: str) -> dict[str, Tensor]:
    return train_coop(backbone_on(device), dataset(6), RECIPE).state()


def maple(bench: Bench, device: str) -> dict[str, Tensor]:
    return train_maple(backbone_on(device), dataset(6), RECIPE).state()


def baple(bench: Bench, device: str) -> dict[str, Tensor]:
    recipe = BapleRecipe(target=0, shots=2, tokens=2, epochs=1, batch=2, poisoned=0.4)
    found = train_baple(backbone_on(device), medical_bench.dataset(each=2), recipe)
    return {"context": found.context, "noise": found.noise}


def fpt(bench: Bench, device: str) -> dict[str, Tensor]:
    data = medical_bench.dataset(each=2)
    network = train_fpt(bench.model(FROZEN, device), data, FptRecipe(epochs=1, batch=2), validation=data)
    return {name: tensor.cpu() for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("train", [coop, maple, baple, fpt])
def test_training(train: object, bench: Bench) -> None:
    one = train(bench, "cpu")  # type: ignore[operator]
    with counted() as counts:
        other = train(bench, DEVICES[0])  # type: ignore[operator]
    assert counts.devices == {DEVICES[0]}
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=1e-4, msg=name)
        assert other[name].device.type == "cpu"
