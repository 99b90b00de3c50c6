"""``torch.compile`` of the image tower: the same features to rounding, and one sentence if it fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracles.models.tiny import tiny_backbone, tiny_clip, tiny_preprocessing, tokenizer

from otpt.backbones import ClipBackbone, load_backbone
from otpt.errors import OtptError


def compiled(kind: str) -> ClipBackbone:
    options: dict[str, Any] = {"name": kind, "architecture": kind, "device": torch.device("cpu"), "compiled": True}
    return ClipBackbone(tiny_clip(kind), tokenizer(), tiny_preprocessing(kind), precision="float32", **options)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_compiled_features_are_the_plain_ones(kind: str) -> None:
    plain, found = tiny_backbone(kind), compiled(kind)
    pixels = torch.randn(19, 3, plain.preprocessing.size, plain.preprocessing.size)
    torch.testing.assert_close(found.encode_pixels(pixels), plain.encode_pixels(pixels), rtol=0, atol=1e-5)
    assert torch.equal(found.encode_pixels(pixels[:3]), found.encode_pixels(pixels)[:3])
    assert found.compiled
    assert "compiled=True" in repr(found)


@pytest.mark.parametrize("result", [RuntimeError("no compiler\nat all"), 0.5], ids=["fails", "differs"])
def test_a_compiler_that_fails_or_errs_is_one_sentence(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(tower: Any, **_: Any) -> Any:
        def run(pixels: torch.Tensor) -> torch.Tensor:
            if isinstance(result, Exception):
                raise result
            features: torch.Tensor = tower(pixels)
            return features + features.abs().max()

        return run

    monkeypatch.setattr(torch, "compile", compile)
    with pytest.raises(OtptError, match=r"no compiler|differs") as error:
        compiled("vit")
    assert "\n" not in str(error.value)


def test_a_device_that_has_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otpt.backbones.loading.pick_device", lambda _: torch.device("mps"))
    with pytest.raises(OtptError, match="mps"):
        load_backbone("pocket", compile=True)
