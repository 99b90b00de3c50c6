"""Every method at tiny size, for a device that is claimed (:mod:`oracles.devices.elsewhere`) and for the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.data.medical_bench import write_frozen_vit
from oracles.devices.elsewhere import Counts, counted
from oracles.methods.maple import maple_state
from oracles.models.tiny import tiny_clip, tiny_preprocessing, tokenizer
from oracles.runs.evaluation_bench import NAMES, dataset, image, rows

from otpt.backbones import Backbone, ClipBackbone
from otpt.evaluation import EvaluationSettings, evaluate
from otpt.features import FeatureCache, pipeline
from otpt.features.pipeline import EncodedImage, FeaturePipeline
from otpt.methods import field_methods, get_methods, published_methods
from otpt.methods.batch import Batch
from otpt.methods.fpt import load_frozen_vit
from otpt.methods.fpt.files import write_fpt
from otpt.methods.fpt.network import FptNetwork, sizes_for
from otpt.methods.output import Output
from otpt.methods.predictor import Predictor
from otpt.methods.promptsmooth import Smoothing
from otpt.prompts.learned import CocoopContext, CoopContext, LearnedPrompt, MaplePrompts
from otpt.registry import IMAGE
from otpt.settings import Fpp
from otpt.views import ViewRecipe

ALL = {**published_methods(), **field_methods()}
FROZEN = tuple(name for name, each in ALL.items() if each.adapt == "fpt")
"""Methods whose model is a frozen ViT in place of a CLIP."""
BAPLE = tuple(name for name, each in ALL.items() if each.adapt == "baple")
IMAGE_METHODS = tuple(name for name, each in ALL.items() if each.scope == IMAGE and name not in FROZEN)
PIXELS = tuple(name for name in IMAGE_METHODS if ALL[name].init == "maple" or ALL[name].adapt == "promptsmooth")
"""Methods that encode pixels under prompts or noise of their own."""
FEATURES = tuple(name for name in IMAGE_METHODS if name not in (*PIXELS, *BAPLE))
STREAMS = tuple(name for name, each in ALL.items() if each.scope != IMAGE)
IMAGES, RECIPE = 3, ViewRecipe(n_views=6)
CLOSE = 2e-5
"""What a probability may differ by from the CPU's: passes of eight contexts in place of one, and other kernels."""
ATTRIBUTES = {name: ["big", "small"] for name in NAMES}


def backbone_on(device: str, precision: str = "float32") -> Backbone:
    """The tiny CLIP on a device that may be a claimed one; of this module, so that processes can be sent it."""
    options: dict[str, Any] = {"name": "tiny", "architecture": "tiny", "precision": precision}
    place = torch.device(device)
    return ClipBackbone(tiny_clip("vit"), tokenizer(), tiny_preprocessing("vit"), device=place, **options)


def _normal(*shape: int, seed: int) -> torch.Tensor:
    return 0.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@lru_cache
def prompts() -> dict[str, LearnedPrompt]:
    """Learned prompts of CoOp, CoCoOp and MaPLe, of random numbers."""
    shapes = ((4, 64), (2, 32), (2,), (64, 2), (64,))
    cocoop = CocoopContext(*(_normal(*shape, seed=i) for i, shape in enumerate(shapes)))
    state = {name.removeprefix("prompt_learner."): tensor for name, tensor in maple_state("vit", 2).items()}
    couplings = [("proj", "ctx"), ("compound_prompt_projections.0", "compound_prompts_text.0")]
    texts, weights, biases = (
        torch.stack([state[name].float() for name in names])
        for names in zip(*((text, f"{each}.weight", f"{each}.bias") for each, text in couplings), strict=True)
    )
    maple = MaplePrompts(texts, weights, biases)
    return {"coop": CoopContext(_normal(4, 64, seed=0)), "cocoop": cocoop, "maple": maple}


def write_trained(folder: Path) -> list[str]:
    """Files for BAPLe and FPT, of random numbers, as ``Settings`` takes them."""
    state = {"0.ctx": _normal(2, 64, seed=5), "1.noise": _normal(3, 32, 32, seed=6) / 64}
    torch.save({"state_dict": state}, folder / "baple.tar")
    torch.manual_seed(0)
    sizes = sizes_for("fpt", classes=len(NAMES), frozen_width=32, frozen_heads=2, depth=3)
    write_fpt(folder / "fpt.safetensors", FptNetwork(replace(sizes, prompts=3, size=32)), {})
    baple = [f"{name}:{target}={folder}/baple.tar" for name in BAPLE for target in range(len(NAMES))]
    return [*baple, *(f"{name}={folder}/fpt.safetensors" for name in FROZEN)]


@dataclass(frozen=True)
class Bench:
    """What all methods need, in a folder."""

    folder: Path

    def settings(self, methods: Sequence[str], /, **changes: Any) -> Settings:
        """Of an evaluation, small."""
        kinds = {ALL[name].init for name in methods}
        trained = [each for each in self._trained() if each.split("=")[0].split(":")[0] in methods]
        given: dict[str, Any] = {
            "methods": methods,
            "views": RECIPE,
            "contexts": [learned for kind, learned in prompts().items() if kind in kinds],
            "attributes": ATTRIBUTES if "attributes" in kinds else None,
            "trained": trained,
            "smoothing": Smoothing(copies=3, samples=4, selection=2),
            "fpp": Fpp(steps=2, noises=1),
        }
        return EvaluationSettings(**{**given, **changes})

    def _trained(self) -> list[str]:
        return write_trained(self.folder)

    def model(self, methods: Sequence[str], device: str) -> Any:
        """The tiny CLIP, or the frozen ViT of FPT."""
        if methods[0] not in FROZEN:
            return backbone_on(device)
        path = self.folder / "vit"
        return load_frozen_vit(str(path if path.exists() else write_frozen_vit(path)), device=device, size=48)

    def predictor(self, methods: Sequence[str], model: Any) -> Predictor:
        """All methods in one."""
        task = self.settings(methods).task_for(dataset(IMAGES))
        return Predictor(model, task, get_methods(methods))

    def predicted(self, methods: Sequence[str], model: Any, predictor: Predictor) -> tuple[list[list[Output]], Counts]:
        """Outputs of a batch of images, and what their prediction asked of the device: pixels go there too."""
        tasks = [predictor.task(i, partial(image, i), seed=0) for i in range(IMAGES)]
        with counted() as counts:
            found = [encoded for _, encoded in FeaturePipeline(model, threads=0)(tasks)]
            assert all(isinstance(each, EncodedImage) for each in found)
            outputs = predictor(Batch([each for each in found if isinstance(each, EncodedImage)], 0))
        return outputs, counts

    def evaluated(
        self, methods: Sequence[str], model: Any, folder: Path, /, cache: FeatureCache | None = None, **changes: Any
    ) -> tuple[list[dict[str, Any]], Counts]:
        """Rows of an evaluation, and what its one batch asked of the device, without what is prepared once.

        ``changes`` are to the settings.
        """
        with counted_batches() as counts:
            evaluate(dataset(IMAGES), model, self.settings(methods, **changes), out=folder, cache=cache)
        return rows(folder), counts


@contextmanager
def counted_batches() -> Iterator[Counts]:
    """Counts while images are encoded, asked for more views, predicted and kept; not what is prepared once."""
    total = Counts()
    under_way: list[str] = []

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            if under_way:  # encoding as a part of a prediction
                return real(*given, **more)
            under_way.append(real.__name__)
            try:
                with counted() as counts:
                    return real(*given, **more)
            finally:
                under_way.clear()
                total.add(counts)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (Predictor, "__call__"),
            (Predictor, "is_enough"),
            (Backbone, "encode_pixels"),
            (pipeline, "to_host"),
        ):
            patch.setattr(owner, name, counting(getattr(owner, name)))
        yield total
