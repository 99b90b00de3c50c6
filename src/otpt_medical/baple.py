"""BAPLe: a context learned together with a trigger; the same images clean and with the trigger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from PIL import Image, ImageColor, ImageDraw, ImageFont
from pydantic import Field, TypeAdapter
from torch import Tensor

from otpt.backbones import text_encoder
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.files import Json
from otpt.methods import Batch, Method, Output, Protocol, Setup, Task, by_preparer, register_system
from otpt.methods.state import PromptState, mean_cosine
from otpt.prompts import Prompt, tokenize_prompts
from otpt.prompts.learned import CoopContext, read_learned
from otpt.transfers import to_host
from otpt.views import normalised, unit_pixels
from otpt.views.recipe import CLIP_MEAN, CLIP_STD
from otpt_medical.trained import Notes, Trained, TrainedSystem, write_trained


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
        patch = TypeAdapter(Patch).validate_python(file.notes.patch)
        return cls(tensors["0.ctx"], tensors["1.noise"], patch)

    def pixels(self, unit: Tensor, *, trigger: bool) -> Tensor:
        """Normalise pixels (B, 3, S, S) in [0, 1] by CLIP's mean and deviation for any backbone."""
        pixels = triggered(unit, self.noise.to(unit), self.patch) if trigger else unit
        return normalised(pixels, CLIP_MEAN, CLIP_STD)

    def write(self, path: Path, notes: Notes) -> None:
        """Write safetensors under the names of BAPLe's own checkpoints."""
        notes = notes.model_copy(update={"patch": asdict(self.patch)})
        write_trained(path, {"0.ctx": self.context, "1.noise": self.noise}, notes)


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
    """Methods of BAPLe for one target class, a :class:`otpt.methods.Group`. Deterministic."""

    def __init__(self, setup: Setup, models: Sequence[BapleModel], *, trigger: bool) -> None:
        self.prompt, self.methods = Baple.prompt, setup.methods
        self._backbone, self._models, self._trigger = setup.backbone, models, trigger
        self._official = setup.protocol.official_precision
        self._states = [setup.state(Prompt.learned(model.context), tunes=False) for model in models]

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`otpt.methods.Group`."""
        size = self._backbone.preprocessing.size
        unit = torch.stack([unit_pixels(image.open()[0], size) for image in batch.images])
        features = self._features(unit.to(self._backbone.dtype))
        return [self._outputs(*pair) for pair in zip(self._states, features, strict=True)]

    def _features(self, unit: Tensor) -> Sequence[Tensor]:
        """Return image features (B, D) for each model; clean images share them."""
        encode = partial(self._backbone.encode_pixels, chunk=self._backbone.chunk)
        if self._trigger:
            return [encode(model.pixels(unit, trigger=True)) for model in self._models]
        return [encode(self._models[0].pixels(unit, trigger=False))] * len(self._models)

    def _outputs(self, state: PromptState, features: Tensor) -> list[Output]:
        logits = [state.logits(feature, state.text_features) for feature in features.split(1)]
        cosine, *on_host = to_host([mean_cosine(state.text_features), *logits])
        extras = {"mean_cosine": float(cosine)}
        return [Output.of_clean(row, official=self._official, extras=extras) for row in on_host]


@register_system
class Baple(TrainedSystem):
    """BAPLe: a context learned together with a backdoor; clean images and images with the trigger.

    Published numbers are means over target classes, on clean images and on images with the trigger, so that an
    evaluation has a variant of the data set for each of them.
    """

    name: ClassVar[str] = "baple"
    prompt: ClassVar[str] = "learned context"

    target: int | None = Field(None, ge=0, description="only this target class (default: those of all files)")
    backdoor: bool | None = Field(
        None, description="only images with the trigger (on), or only clean images (off) (default: both)"
    )

    def variants(self, dataset: Dataset, methods: Sequence[Method]) -> Sequence[Dataset]:
        """Return the images and the images with the trigger, for each target class of the files."""
        variants = []
        for target in self._targets(methods):
            fooled = dataset.renamed(f"{dataset.name}:backdoor", labels=[target] * len(dataset))
            for images, backdoor in ((dataset, False), (fooled, True)):
                if self.backdoor in (None, backdoor):
                    variants.append(images.as_variant(f"target-{target}", {"target": target, "backdoor": backdoor}))
        return variants

    def _targets(self, methods: Sequence[Method]) -> list[int]:
        """Return the target classes to evaluate; raise if a method has no file for one of them."""
        systems = [(system, members) for system, members in by_preparer(methods) if isinstance(system, Baple)]
        if len({(system.target, system.backdoor) for system, _ in systems}) > 1:
            raise OtptError(
                "The methods have different settings of target or backdoor; give all of them the same, or evaluate "
                "them by different commands."
            )
        targets: set[int] = set() if self.target is None else {self.target}
        for system, members in systems:
            system.check_files(members)
            if self.target is None:
                targets |= system.file_targets(members)
        for system, members in systems:
            for method in members:
                for target in targets or (None,):
                    system.file_for(method, target)
        return sorted(targets)

    def file_targets(self, methods: Sequence[Method]) -> set[int]:
        """Return the target classes of the files of methods."""
        targets = set()
        for file in self.files:
            if not any(self.is_for(file, method) for method in methods):
                continue
            if file.target is None:
                raise OtptError(
                    f"The file {str(file.path)!r} does not say its target class; write TARGET=FILE or "
                    "METHOD:TARGET=FILE with the number of the target class."
                )
            targets.add(file.target)
        return targets

    def check(self, setup: Setup) -> None:
        """See :class:`otpt.methods.System`."""
        for model in self._models(setup):
            tokenize_prompts(text_encoder(setup.backbone), setup.task.classes, Prompt.learned(model.context))

    def prepare(self, setup: Setup) -> Sequence[BapleGroup]:
        """See :class:`otpt.methods.System`."""
        return [BapleGroup(setup, self._models(setup), trigger=bool(self.backdoor))]

    def _models(self, setup: Setup) -> list[BapleModel]:
        self.check_files(setup.methods)
        return [self._model(setup, self.file_for(method, self.target)) for method in setup.methods]

    def _model(self, setup: Setup, file: Trained) -> BapleModel:
        classes, size = setup.task.classes, setup.backbone.preprocessing.size
        file.check(classes, setup.backbone.fingerprint)
        if file.target is None or file.target >= len(classes):
            raise OtptError(f"The file {str(file.path)!r} is for the target class {file.target} of {len(classes)}.")
        model = BapleModel.of(file)
        if model.noise.shape[-2:] != (size, size):
            side = model.noise.shape[-1]
            raise OtptError(f"The trigger in {str(file.path)!r} is for images of {side} pixels, not of {size}.")
        return model

    def prompt_name(self, task: Task, protocol: Protocol, method: Method) -> str:
        """See :class:`otpt.methods.System`."""
        return self.prompt

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """See :class:`otpt.methods.System`."""
        return {"trained": self.file_for(method, self.target).digest}

    def learned_from(self) -> Mapping[str, Sequence[str]]:
        """Return the training images of the files for the target class."""
        return self.training_images(file for file in self.files if self.target in (None, file.target))
