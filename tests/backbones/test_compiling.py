"""A compiled image tower: the plain one's features, the same bits in any batch, and one sentence where it cannot be."""

from __future__ import annotations

import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.models.tiny import tiny_backbone, tiny_clip, tiny_preprocessing, tokenizer
from torch import Tensor, nn

from otpt.backbones import Backbone, load_backbone
from otpt.backbones.towers.image_tower import ImageTower
from otpt.backbones.tuned.compiling import CompiledTower, check_agreement
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation import Settings, evaluate
from otpt.evaluation.config import run_config
from otpt.features.cache import feature_key
from otpt.views import ViewRecipe

pytestmark = pytest.mark.long

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++"))), reason="torch.compile needs a C++ compiler, and there is none"
)


def images(count: int, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(3))


def compiled_backbone(precision: str = "float32") -> Backbone:
    options: dict[str, Any] = {"name": "tiny", "architecture": "tiny", "device": torch.device("cpu")}
    parts = tiny_clip("vit"), tokenizer(), tiny_preprocessing("vit")
    return Backbone(*parts, precision=precision, compiled=True, **options)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return compiled_backbone()


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_compiler
def test_features_are_those_of_the_plain_tower(backbone: Backbone) -> None:
    pixels = images(11)
    found = backbone.encode_pixels(pixels)
    torch.testing.assert_close(found, tiny_backbone("vit").encode_pixels(pixels), rtol=0, atol=5e-6)
    assert not found.is_inference()


@needs_compiler
@pytest.mark.equality
def test_a_view_has_the_same_bits_in_every_batch_and_with_any_threads(
    backbone: Backbone, threads: Callable[[int], None]
) -> None:
    pixels = images(19)
    together = backbone.encode_pixels(pixels)
    for number in (1, 2, 3):
        threads(number)
        for count in (1, 2, 9, 17):
            assert torch.equal(backbone.encode_pixels(pixels[:count]), together[:count]), (number, count)
        order = torch.randperm(19, generator=torch.Generator().manual_seed(0))
        assert torch.equal(backbone.encode_pixels(pixels[order]), together[order])
        assert torch.equal(backbone.encode_pixels(torch.cat([3 * pixels[5:12], pixels[4:5]]))[7], together[4])


@needs_compiler
@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_code_is_for_one_thread_and_made_once(kind: str, threads: Callable[[int], None]) -> None:
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache, run_and_get_code

    threads(3)
    size = tiny_preprocessing(kind).size
    visual = tiny_clip(kind).visual
    with fresh_cache():
        tower, code = run_and_get_code(lambda: ImageTower(visual, size, compile=True))
    assert "cpp_fused" in code[0]
    assert "omp parallel" not in "".join(code)
    made = counters["stats"]["unique_graphs"]
    for number in (3, 1, 2):
        threads(number)
        tower(images(40, size))
        tower(images(3, size).mT.contiguous().mT)
    assert counters["stats"]["unique_graphs"] == made  # nothing was compiled anew, nor run uncompiled


@needs_compiler
def test_low_precision_is_compiled_too() -> None:
    pixels = images(3)
    found, plain = (each.encode_pixels(pixels) for each in (compiled_backbone("bf16"), tiny_backbone("vit", "bf16")))
    torch.testing.assert_close(found, plain, rtol=0, atol=5e-2)


@needs_compiler
def test_a_copy_in_another_process_is_compiled_too(backbone: Backbone) -> None:
    copy = pickle.loads(pickle.dumps(backbone))
    assert copy.compiled
    assert "compiled=True" in repr(copy)
    assert torch.equal(copy.encode_pixels(images(3)), backbone.encode_pixels(images(3)))


@needs_compiler
def test_features_and_runs_never_mix(backbone: Backbone, tmp_path: Path) -> None:
    plain = tiny_backbone("vit")
    keys = [feature_key(each, ViewRecipe(), 0, "float32", "an image") for each in (backbone, plain)]
    assert keys[0] != keys[1]
    settings = Settings(methods=["zero-shot"])
    data = Dataset("two", ("cat", "dog"), ["0", "1"], [0, 1], lambda i: np.full((40, 40, 3), 50 * i, np.uint8))
    configs = [run_config(each, [data], settings)["backbone"] for each in (backbone, plain)]
    assert configs[0]["compiled"] is True
    assert "compiled" not in configs[1]  # as in runs of earlier versions
    evaluate(data, plain, settings, out=tmp_path / "run")
    with pytest.raises(OtptError, match="compiled"):
        evaluate(data, backbone, settings, out=tmp_path / "run")


@needs_compiler
def test_no_compiler_is_one_sentence(tmp_path: Path) -> None:
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    with (
        fresh_cache(),
        config.patch({"cpp.cxx": (str(tmp_path / "no-compiler"),)}),
        pytest.raises(OtptError, match=r"cannot be compiled on 'cpu': .*needs a C\+\+ compiler"),
    ):
        compiled_backbone()


@needs_compiler
def test_a_tower_that_cannot_be_traced_is_one_sentence() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :4] * (2 if float(x.sum()) > 0 else 1) * self.weight

    with pytest.raises(OtptError, match="The image tower cannot be compiled on 'cpu': "):
        ImageTower(Asking(), 8, compile=True)


def test_other_devices_are_refused_before_a_model_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otpt.backbones.loading.pick_device", lambda _: torch.device("mps"))
    with pytest.raises(OtptError, match="compiled on 'cpu' and 'cuda', not on 'mps'; leave compile out"):
        load_backbone("no/such-model", device="mps", compile=True)


def test_a_compiled_tower_that_differs_is_refused() -> None:
    plain = torch.ones(4, 2)
    with pytest.raises(OtptError, match=r"differs from the plain one by 1\.0e-02"):
        check_agreement(lambda _: plain + 0.01, plain, images(4), low=False)
    check_agreement(lambda _: plain + 0.01, plain, images(4), low=True)
    with pytest.raises(OtptError, match="other bits at other places of a chunk"):
        check_agreement(lambda _: plain + 1e-6 * torch.arange(4)[:, None], plain, images(4), low=False)
    with pytest.raises(OtptError, match="differs"):
        check_agreement(lambda _: plain * torch.nan, plain, images(4), low=False)


def test_chunks_of_cuda_graphs_are_copied_and_stay_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a double of ``torch.compile`` that, as a CUDA graph, always writes to the same memory."""
    asked: dict[str, Any] = {}
    places = set()
    memory = torch.empty(2, 4)

    def double(tower: Callable[[Tensor], Tensor], **options: Any) -> Callable[[Tensor], Tensor]:
        asked.update(options)

        def replay(pixels: Tensor) -> Tensor:
            places.add(threading.get_ident())
            return memory.copy_(tower(pixels))

        return replay

    devices: list[torch.device] = []
    monkeypatch.setattr(torch, "compile", double)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    tower = CompiledTower(nn.Flatten(), torch.device("cuda:1"), order=torch.contiguous_format)
    chunks = [torch.full((2, 1, 2, 2), float(i)) for i in range(3)]

    def encode() -> list[Tensor]:
        return tower.in_its_thread(lambda: [tower(chunk) for chunk in chunks])

    with ThreadPoolExecutor(3) as callers:
        for found in [future.result() for future in [callers.submit(encode) for _ in range(3)]]:
            assert [part.unique().tolist() for part in found] == [[0.0], [1.0], [2.0]]
    assert asked == {"mode": "reduce-overhead", "fullgraph": True, "dynamic": False}
    assert len(places) == 1
    assert places.isdisjoint({threading.get_ident()})
    assert devices == [torch.device("cuda:1")]
