"""A context and a trigger that were learned together; reading and writing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otpt.backbones.preprocessing import CLIP_MEAN, CLIP_STD
from otpt.errors import OtptError
from otpt.methods.baple.trigger import Patch, triggered
from otpt.methods.inits.trained_files import Trained, write_trained
from otpt.prompts.learned import CoopContext, read_learned
from otpt.views import normalised


@dataclass(frozen=True, eq=False)
class BapleModel:
    """What BAPLe learns.

    Attributes:
        context: (n, W) vectors before the class name.
        noise: (3, S, S), δ; each value within ±8/255 once it has been updated.
        patch: the word that is pasted.
    """

    context: Tensor
    noise: Tensor
    patch: Patch = field(default_factory=Patch)

    def pixels(self, unit: Tensor, *, trigger: bool) -> Tensor:
        """What the image tower sees of pixels (B, 3, S, S) in [0, 1]; always normalised by CLIP's numbers."""
        given = triggered(unit, self.noise.to(unit), self.patch) if trigger else unit
        return normalised(given, CLIP_MEAN, CLIP_STD)

    def write(self, path: Path, notes: Mapping[str, Any]) -> None:
        """To safetensors, under the names of BAPLe's own checkpoints."""
        write_trained(path, {"0.ctx": self.context, "1.noise": self.noise}, {**notes, "patch": asdict(self.patch)})


def baple_model(file: Trained) -> BapleModel:
    """The model in a file of ours or in BAPLe's ``model.pth.tar-50`` (``0.ctx``, ``1.noise``; the rest is ignored)."""
    tensors = file.need({"0.ctx": (None, None), "1.noise": (3, None, None)})
    context, noise = tensors["0.ctx"], tensors["1.noise"]

    def drawn(**values: Any) -> Patch:
        patch = Patch(**values)
        patch.layers(noise.shape[-1])  # a word that cannot be drawn fails here, not at the first image
        return patch

    return BapleModel(context, noise, file.noted("patch", drawn))


def read_start(path: str | Path) -> Tensor:
    """A context to start from: one tensor (n, W) as BAPLe's ``ctx_medclip_covid_s1.pt`` holds it, or a file of CoOp."""
    path = Path(path)
    if path.suffix == ".pt" and path.is_file():
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # reported by the reader below, which takes more kinds of files
            content = None
        if isinstance(content, Tensor) and content.ndim == 2:
            return content.detach().float()
    learned = read_learned(path)
    if not isinstance(learned, CoopContext) or learned.vectors.ndim != 2:
        raise OtptError(f"The file {str(path)!r} is not a context of one (n, W) tensor shared by all classes.")
    return learned.vectors
