"""The device phase on fake tensors: mixed devices and reads of values that wait for the device raise.

Fake CUDA tensors need no driver, but autograd on them does; methods that tune run on fake CPU tensors, where hidden
reads raise as well. Both stop at the one copy to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from otpt import OtptError, functional
from otpt.methods import Method, field_methods, published_methods

METHODS = {**published_methods(), **field_methods()}
TUNED = [name for name, method in METHODS.items() if method.tunes]
OTHERS = [name for name in METHODS if name not in TUNED]


class HostReached(Exception):
    """Raised in place of the copy to the host, with the types of device of what is copied."""


def stop(tensors: Sequence[Tensor]) -> list[Tensor]:
    raise HostReached({each.device.type for each in tensors})


def run(method: Method, device: str, images: int) -> set[str]:
    """Run a method up to the copy to the host; the devices of what is copied."""
    classes, width, context = 6, 32, torch.randn(4, 16, device=device)
    weights = torch.randn(16, classes * width, device=device)
    views = F.normalize(torch.randn(images, 8, width, device=device), dim=-1)

    def encode(contexts: Tensor) -> Tensor:
        return F.normalize((contexts.mean(-2) @ weights).unflatten(-1, (classes, width)), dim=-1)

    texts = encode if method.tunes else encode(context)
    with pytest.raises(HostReached) as reached:
        functional.predict(views, texts, method=method, context=context if method.tunes else None)
    found: set[str] = reached.value.args[0]
    return found


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    # these read values, of the inputs and of the user's encoder
    for name in ("arrays.check_finite", "functional.check_finite", "functional._check_unit_norm"):
        monkeypatch.setattr(f"otpt.{name}", lambda *_: None)
    monkeypatch.setattr("otpt.methods.path.to_host", stop)


def without_pixels(name: str) -> Method:
    """The method; skip those that need more than features."""
    try:
        with patch("otpt.functional.PromptGroup", side_effect=HostReached(set())):
            run(METHODS[name], "cpu", 1)
    except OtptError as error:
        pytest.skip(str(error))
    return METHODS[name]


@pytest.mark.parametrize("name", OTHERS)
def test_methods_without_a_gradient_stay_on_the_device(name: str) -> None:
    method = without_pixels(name)
    with FakeTensorMode():
        assert run(method, "cuda", 3) == {"cuda"}


@pytest.mark.parametrize("name", TUNED)
def test_methods_with_a_gradient_read_no_value(name: str) -> None:
    method = without_pixels(name)
    if method.gate != "none":
        pytest.skip("a gate decides on the host which images are tuned")
    with FakeTensorMode():
        assert run(method, "cpu", 1) == {"cpu"}


def test_mixed_devices_and_hidden_reads_raise() -> None:
    """What the tests above rely on."""
    with FakeTensorMode():
        device, host = torch.ones(2, device="cuda"), torch.ones(2)
        with pytest.raises(RuntimeError, match="device"):
            device + host
        with pytest.raises(RuntimeError):
            bool(device.sum() > 1)
