"""The claimed device itself: it refuses what CUDA refuses, and counts what a GPU would be waited for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles.devices.elsewhere import counted
from oracles.models.tiny import tiny_preprocessing
from oracles.runs.evaluation_bench import image

from otpt.transfers import Steps, join, run, to_device, to_host
from otpt.views import ViewRecipe, make_views

HERE, THERE = torch.device("lazy:0"), torch.device("lazy:1")


def test_it_computes_as_the_cpu_does_gradients_and_views_included() -> None:
    plain = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    away = plain.to(HERE)
    assert (away.device, away[1:].device) == (HERE, HERE)
    assert torch.equal((away @ away.mT).softmax(1).cpu(), (plain @ plain.mT).softmax(1))
    away[1:].zero_()
    assert away.tolist() == [plain[0].tolist(), *[[0.0] * 3] * 3]
    leaf = plain.to(HERE).requires_grad_()
    (gradient,) = torch.autograd.grad((leaf**2).sum(), leaf)
    assert torch.equal(gradient.cpu(), 2 * plain)
    assert torch.eye(2, device=HERE).device == torch.arange(3, device=THERE).new_ones(2).to(HERE).device == HERE


def test_devices_do_not_mix() -> None:
    away = torch.ones(3, device=HERE)
    for other in (torch.ones(3), torch.ones(3, device=THERE)):
        with pytest.raises(RuntimeError, match="same device"):
            away + other
        with pytest.raises(RuntimeError, match="same device"):
            torch.stack([away, other])
    assert (away * torch.tensor(2.0)).tolist() == [2.0] * 3  # a number without dimensions may come from the host
    with pytest.raises((TypeError, RuntimeError), match="numpy"):
        away.numpy()


@pytest.mark.parametrize(
    ("question", "waits"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: bool((x > 0).all()), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.unique(), 1),
        (lambda x: x[torch.tensor([0, 1])], 1),
        (lambda x: x + torch.ones(3).to(x.device), 1),
        (lambda x: x + torch.ones(3).to(x.device, non_blocking=True), 0),
        (lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device), 1),
        (lambda x: torch.where(x > 0, x, torch.zeros_like(x)).softmax(0)[x.argsort()], 0),
    ],
)
def test_what_is_counted(question: object, waits: int) -> None:
    away = torch.tensor([1.0, 2.0, -3.0]).to(HERE)
    with counted() as counts:
        question(away)  # type: ignore[operator]
    assert counts.synchronisations == waits, counts.waits


def test_one_copy_brings_all_tensors_to_the_host_bit_by_bit() -> None:
    draw = torch.Generator().manual_seed(1)
    plain = [
        torch.randn(3, 2, generator=draw),
        torch.tensor([True, False, True]),
        torch.randn(5, generator=draw, dtype=torch.float64),
        torch.arange(4, dtype=torch.uint8),
        torch.randn(2, 3, generator=draw).bfloat16(),
        torch.tensor(7),
        torch.tensor(7.0).expand(1),
        torch.empty(0, 4),
    ]
    away = [each.to(HERE).expand_as(each) for each in plain]
    with counted() as counts:
        found = to_host([away[0].mT, *away[1:], plain[0]])
    assert counts.synchronisations == 1
    for one, other in zip(found, [plain[0].mT, *plain[1:], plain[0]], strict=True):
        assert (one.dtype, one.device.type) == (other.dtype, "cpu")
        assert torch.equal(one, other)
    assert to_host(plain)[0] is plain[0]


def test_work_that_waits_at_the_same_time_waits_once() -> None:
    def work(number: int, rounds: int) -> Steps[list[float]]:
        found = []
        for i in range(rounds):
            (value,) = yield [torch.full((1,), float(number + i), device=HERE)]
            found.append(float(value))
        return found

    with counted() as counts:
        assert run(join([work(0, 2), work(10, 0), work(20, 1)])) == [[0.0, 1.0], [], [20.0]]
    assert counts.synchronisations == 2


def test_bytes_are_sent_and_made_floats_over_there() -> None:
    pixels = torch.arange(8, dtype=torch.uint8)
    with counted() as counts:
        there = to_device(pixels, THERE, torch.float32)
    assert (counts.uploaded_bytes, counts.synchronisations, there.dtype) == (8, 0, torch.float32)
    assert to_device(pixels, torch.device("cpu")) is pixels
