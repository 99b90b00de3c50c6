"""BAPLe: a context learned together with a trigger; the same images clean and with the trigger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageColor, ImageDraw, ImageFont
from torch import Tensor

from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.medical.trained import Trained, TrainedHook, file_for, register_trained, write_trained
from otpt.methods import Batch, Method, Methods, Output, text_state
from otpt.methods.state import PromptState, mean_cosine
from otpt.prompts import Prompt
from otpt.prompts.learned import CoopContext, read_learned
from otpt.settings import Settings
from otpt.transfers import to_host
from otpt.views import normalised, unit_pixels
from otpt.views.recipe import CLIP_MEAN, CLIP_STD


@dataclass(frozen=True)
class Patch:
    """Word in the bottom-left corner of an image.

    BAPLe writes "Lab" in the font Arizonia; the default is Pillow's own font in the same size, place and colour.
    """

    text: str = "Lab"
    size: int = 24
    colour: str = "#77ab59"
    offset: int = 15
    font: str | None = None

    def layers(self, side: int) -> tuple[Tensor, Tensor]:
        """Return the mask (1, S, S) in [0, 1] and the colour (3, 1, 1) of the word for S = ``side`` pixels."""
        try:
            font = ImageFont.truetype(self.font, self.size) if self.font else ImageFont.load_default(self.size)
        except OSError:
            raise OtptError(f"Cannot read the font {self.font!r}; expected a TrueType or OpenType file.") from None
        mask = Image.new("L", (side, side))
        ImageDraw.Draw(mask).text((self.offset, side - self.offset), self.text, fill=255, font=font, anchor="ld")
        cover = torch.from_numpy(np.asarray(mask, np.float32)[None] / 255)
        return cover, torch.tensor(ImageColor.getrgb(self.colour), dtype=torch.float32)[:, None, None] / 255


def triggered(pixels: Tensor, noise: Tensor, patch: Patch) -> Tensor:
    """Compute clamp(paste(x, word) + δ, 0, 1) for pixels (B, 3, S, S) in [0, 1] and noise δ (3, S, S)."""
    cover, colour = (layer.to(pixels) for layer in patch.layers(pixels.shape[-1]))
    return (cover * colour + (1 - cover) * pixels + noise).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class BapleModel:
    """Learned context (n, W) and trigger, consisting of noise δ (3, S, S) and a word."""

    context: Tensor
    noise: Tensor
    patch: Patch = field(default_factory=Patch)

    @classmethod
    def of(cls, file: Trained) -> BapleModel:
        """Read a file of :meth:`write` or BAPLe's ``model.pth.tar-50``."""
        tensors = file.need(["0.ctx", "1.noise"])
        return cls(tensors["0.ctx"], tensors["1.noise"], Patch(**file.notes.get("patch", {})))

    def pixels(self, unit: Tensor, *, trigger: bool) -> Tensor:
        """Normalise pixels (B, 3, S, S) in [0, 1] by CLIP's mean and deviation for any backbone."""
        given = triggered(unit, self.noise.to(unit), self.patch) if trigger else unit
        return normalised(given, CLIP_MEAN, CLIP_STD)

    def write(self, path: Path, notes: Mapping[str, Any]) -> None:
        """Write safetensors under the names of BAPLe's own checkpoints."""
        write_trained(path, {"0.ctx": self.context, "1.noise": self.noise}, {**notes, "patch": asdict(self.patch)})


def read_start(path: str | Path) -> Tensor:
    """Read an initial context (n, W): one tensor as in BAPLe's ``ctx_medclip_covid_s1.pt``, or a file of CoOp."""
    with suppress(Exception):  # reported by the reader below, which takes more kinds of files
        content = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(content, Tensor) and content.ndim == 2:
            return content.detach().float()
    learned = read_learned(path)
    if not isinstance(learned, CoopContext) or learned.vectors.ndim != 2:
        raise OtptError(f"The file {str(path)!r} is not a context of one (n, W) tensor shared by all classes.")
    return learned.vectors


class BapleGroup:
    """Methods of BAPLe for one target class; see :class:`otpt.methods.Group`. Deterministic."""

    prompt = "learned context"

    def __init__(self, methods: Methods, backbone: Backbone, settings: Settings) -> None:
        self.methods, self._backbone, self._settings = methods, backbone, settings
        own = settings.plugins["baple"]
        self._backdoor = bool(own.get("backdoor"))
        self._models = [self._model(file_for(settings.plugins["trained"], each, own["target"])) for each in methods]
        self._states = [text_state(backbone, settings, Prompt.learned(each.context), ()) for each in self._models]

    def _model(self, file: Trained) -> BapleModel:
        classes, size = self._settings.classes, self._backbone.preprocessing.size
        file.check(classes, self._backbone.fingerprint)
        if file.target is None or file.target >= len(classes):
            raise OtptError(f"The file {str(file.path)!r} is for the target class {file.target} of {len(classes)}.")
        model = BapleModel.of(file)
        if model.noise.shape[-2:] != (size, size):
            own = model.noise.shape[-1]
            raise OtptError(f"The trigger in {str(file.path)!r} is for images of {own} pixels, not of {size}.")
        return model

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`Group`."""
        size = self._backbone.preprocessing.size
        unit = torch.stack([unit_pixels(image.open()[0], size) for image in batch.images])
        features = self._features(unit.to(self._backbone.dtype))
        return [self._outputs(*pair) for pair in zip(self._states, features, strict=True)]

    def _features(self, unit: Tensor) -> Sequence[Tensor]:
        """Return image features (B, D) for each model; clean images share them."""
        encode = partial(self._backbone.encode_pixels, chunk=self._backbone.chunk)
        if self._backdoor:
            return [encode(model.pixels(unit, trigger=True)) for model in self._models]
        return [encode(self._models[0].pixels(unit, trigger=False))] * len(self._models)

    def _outputs(self, state: PromptState, features: Tensor) -> list[Output]:
        logits = [state.logits(feature, state.text_features) for feature in features.split(1)]
        cosine, *on_host = to_host([mean_cosine(state.text_features), *logits])
        extras, official = {"mean_cosine": float(cosine)}, self._settings.official_precision
        return [Output.of_clean(own, official=official, extras=extras) for own in on_host]


class BapleHook(TrainedHook):
    """BAPLe's published numbers are means over target classes, on clean images and on images with the trigger."""

    def variants(self, settings: Any, dataset: Dataset, methods: Sequence[Method]) -> Sequence[Dataset]:
        """Return the images and the images with the trigger, for each target class of the given files."""
        files, names = self.files(settings), [method.name for method in methods]
        targets = sorted({file.target for file in files if file.method in names and file.target is not None})
        for method in methods:
            for target in targets or (None,):
                file_for(files, method, target)  # raises if a method has no file for this target
        found = []
        for target in targets:
            fooled = dataset.renamed(f"{dataset.name}:backdoor", labels=[target] * len(dataset))
            for each, backdoor in ((dataset, False), (fooled, True)):
                own = {"baple": {"target": target, "backdoor": backdoor}}
                found.append(each.as_variant(f"target-{target}", own))
        return found


register_trained("baple", BapleGroup, hook=BapleHook())
