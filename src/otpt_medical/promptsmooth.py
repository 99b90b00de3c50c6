"""PromptSmooth: prompts tuned on Gaussian copies of an image; the clean view decides, or the copies vote.

The step is TPT's (:mod:`otpt.methods.tuner`) on Gaussian copies instead of augmented views, all of them and
without the clean view.

A classifier that takes the majority over x + N(0, σ²I) has the same class A for every perturbation of ℓ₂ norm below
R = σ·Φ⁻¹(p_A), where p_A > ½ bounds the probability of A from below (Cohen et al., ICML 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from pydantic import BeforeValidator, Field, InstanceOf
from scipy import special
from torch import Tensor

from otpt.backbones import Backbone, text_encoder
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation import EvaluationSystem
from otpt.features.pipeline import EncodedImage
from otpt.files import Json
from otpt.methods import KEPT_INIT, Batch, Method, Output, Protocol, Setup, Task, init_of, register_system
from otpt.methods.coop import Coop
from otpt.methods.method import TuningConfig
from otpt.methods.state import PromptState, mean_cosine
from otpt.methods.tuner import failed_on, tune
from otpt.metrics.sets import lower_confidence_bound
from otpt.prompts import Prompt, tokenize_prompts
from otpt.registry import AGGREGATIONS, CLEAN, Component
from otpt.transfers import to_host
from otpt.views import Preprocessing, ViewRecipe, make_views
from otpt.views.draws import noise_generator
from otpt_medical.parts import ONLY

ABSTAINED = "abstained"
"""Flag of a prediction by votes whose class does not differ significantly from the second."""

NOISE_PROMPTS = {"kather": Prompt("An H&E image patch of", tokens=5)}
"""PromptSmooth's own contexts: five of the seven tokens are tuned ("an h & e image"), "patch of" is fixed."""


Votes = npt.NDArray[np.int64]


class Certificate(NamedTuple):
    """Certified class or None for an abstention, ℓ₂ radius for pixels in [0, 1], and lower bound p_A."""

    label: int | None
    radius: float
    lower_bound: float


def certify(first_votes: Votes, votes: Votes, *, sigma: float, alpha: float) -> Certificate:
    """Certify the class of most ``first_votes`` (C,) by independent ``votes`` (C,)."""
    label = int(first_votes.argmax())
    bound = lower_confidence_bound(int(votes[label]), int(votes.sum()), alpha)
    if bound < 0.5:
        return Certificate(None, 0.0, bound)
    return Certificate(label, sigma * NormalDist().inv_cdf(bound), bound)


def predict_or_abstain(votes: Votes, alpha: float) -> int | None:
    """Return the class of most votes (C,), or None if a two-sided binomial test at level α cannot tell it from the
    second.
    """
    second, first = np.argsort(votes, kind="stable")[-2:]
    most, both = int(votes[first]), int(votes[first] + votes[second])
    p_value = min(2 * float(special.bdtrc(most - 1, both, 0.5)), 1.0)
    return None if p_value > alpha else int(first)


def noisy_copies(
    clean: Tensor,
    preprocessing: Preprocessing,
    smoothing: PromptSmooth,
    count: int,
    *,
    seed: int,
    image_id: str,
    purpose: str = "tuning",
) -> Iterator[Tensor]:
    """Yield ``count`` noisy copies of a normalised view (3, S, S) in batches (b, 3, S, S).

    The noise N(0, σ²) is added to pixels in [0, 1] without clamping, then normalised: x̂ + σ·ε/std. It depends only
    on (seed, image_id, purpose), not on the batch size.
    """
    generator = noise_generator(purpose, seed=seed, image_id=image_id)
    spread = (smoothing.sigma / torch.tensor(preprocessing.std, dtype=clean.dtype))[:, None, None]
    for start in range(0, count, smoothing.batch):
        size = (min(smoothing.batch, count - start), *clean.shape)
        noise = torch.from_numpy(generator.standard_normal(size, dtype=np.float32)).to(clean.dtype)
        yield clean + spread * noise


class TunedImage(NamedTuple):
    """An image and the prompts tuned for it.

    Attributes:
        clean: (3, S, S) normalised pixels; feature: (D,) of them.
        text_features: (C, D) under each config's prompt.
        skipped: () for each config, whether its gradient was not finite, so that it has the initial prompt.
    """

    clean: Tensor
    feature: Tensor
    text_features: tuple[Tensor, ...]
    skipped: tuple[Tensor, ...]


class Smoother:
    """PromptSmooth on a backbone, from the prompt of ``text``."""

    def __init__(self, backbone: Backbone, text: PromptState, smoothing: PromptSmooth) -> None:
        self._backbone, self._text, self._smoothing = backbone, text, smoothing

    def tune(
        self, image: Image.Image, configs: Sequence[TuningConfig | None], *, seed: int, image_id: str
    ) -> TunedImage:
        """Tune the prompt of an image by each config; None keeps the initial prompt."""
        backbone, text = self._backbone, self._text
        dtype = np.float64 if backbone.dtype == torch.float64 else np.float32
        recipe = ViewRecipe(n_views=1)
        views = make_views(image, recipe, backbone.preprocessing, seed=seed, image_id=image_id, dtype=dtype)
        clean = torch.from_numpy(views[0])
        texts: dict[TuningConfig | None, tuple[Tensor, Tensor]] = {None: (text.text_features, torch.tensor(False))}
        tuning = [config for config in configs if config is not None]
        if tuning:
            copies = torch.cat(list(self._features(clean, self._smoothing.copies, "tuning", seed, image_id)))
            for config, tuned in tune(text, copies[None], tuning).items():
                texts[config] = tuned.text_features[0], tuned.skipped[0]
        features, skipped = zip(*(texts[config] for config in configs), strict=True)
        return TunedImage(clean, backbone.encode_pixels(clean[None], chunk=backbone.chunk)[0], features, skipped)

    def labels(self, tuned: TunedImage, count: int, purpose: str, *, seed: int, image_id: str) -> Tensor:
        """Classify ``count`` new copies under each config's prompt: (configs, count)."""
        labels = []
        for features in self._features(tuned.clean, count, purpose, seed, image_id):
            rows = [self._text.logits(features, texts).argmax(dim=1) for texts in tuned.text_features]
            labels.append(torch.stack(rows))
        return torch.cat(labels, dim=1)

    def _features(self, clean: Tensor, count: int, purpose: str, seed: int, image_id: str) -> Iterator[Tensor]:
        preprocessing, smoothing = self._backbone.preprocessing, self._smoothing
        copies = noisy_copies(clean, preprocessing, smoothing, count, seed=seed, image_id=image_id, purpose=purpose)
        return (self._backbone.encode_pixels(batch, chunk=self._backbone.chunk) for batch in copies)


class PromptSmoothGroup:
    """Methods of PromptSmooth under one prompt, a :class:`otpt.methods.Group`."""

    def __init__(self, setup: Setup, prompt: str, start: Prompt, smoothing: PromptSmooth) -> None:
        self.prompt, self.methods = prompt, setup.methods
        self._official = setup.protocol.official_precision
        self._smoothing = smoothing
        self._text = setup.state(start)
        self._smoother = Smoother(setup.backbone, self._text, smoothing)
        self._configs = [method.tuning(*setup.protocol.place) for method in setup.methods]
        aggregations = {method.aggregate for method in setup.methods}
        self._copies: dict[str, int] = {}  # number of voting copies by their purpose
        if aggregations & {"votes", "certificate"}:
            self._copies["certificate"] = smoothing.samples
        if "certificate" in aggregations:
            self._copies["selection"] = smoothing.selection_votes

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """See :class:`otpt.methods.Group`."""
        by_image = [self._image(image, batch.seed) for image in batch.images]
        return [list(outputs) for outputs in zip(*by_image, strict=True)]

    def _image(self, image: EncodedImage[object], seed: int) -> list[Output]:
        """Return the outputs of one image, one per method."""
        opened, digest = image.open()
        key = digest if image.task.image_id is None else image.task.image_id
        text, count = self._text, len(self.methods)
        try:
            tuned = self._smoother.tune(opened, self._configs, seed=seed, image_id=key)
        except OtptError as error:
            configs = [config for config in self._configs if config is not None]
            raise failed_on(error, [str(image.task.key)], configs) from None
        # copies are encoded once for all methods: labels (methods, n) by their purpose
        labels = [
            self._smoother.labels(tuned, size, purpose, seed=seed, image_id=key)
            for purpose, size in self._copies.items()
        ]
        logits = [text.logits(tuned.feature[None], texts) for texts in tuned.text_features]
        cosines = [mean_cosine(texts) for texts in tuned.text_features]
        on_host = to_host([*logits, *cosines, *tuned.skipped, *labels])
        outputs = []
        for i, method in enumerate(self.methods):
            votes = [np.bincount(rows[i].numpy(), minlength=len(text.class_names)) for rows in on_host[3 * count :]]
            by_purpose = dict(zip(self._copies, votes, strict=True))
            flags = (KEPT_INIT,) if bool(on_host[2 * count + i]) else ()
            extras = {"mean_cosine": float(on_host[count + i])}
            outputs.append(self._output(method, on_host[i], by_purpose, flags, extras))
        return outputs

    def _output(
        self,
        method: Method,
        logits: Tensor,
        votes: Mapping[str, Votes],
        flags: tuple[str, ...],
        extras: dict[str, float],
    ) -> Output:
        """Return a method's output from the clean view's logits (1, C) and the votes (C,) by purpose."""
        if method.aggregate == CLEAN:
            return Output.of_clean(logits, official=self._official, flags=flags, extras=extras)
        smoothing, certifying = self._smoothing, votes["certificate"]
        distribution = certifying / smoothing.samples
        index = int(distribution.argmax())
        if method.aggregate == "votes":
            label = predict_or_abstain(certifying, smoothing.alpha)
        else:
            certificate = certify(votes["selection"], certifying, sigma=smoothing.sigma, alpha=smoothing.alpha)
            label = certificate.label
            extras |= {"radius": certificate.radius, "lower_bound": certificate.lower_bound}
            index = index if label is None else label
        return Output(distribution, index, flags + (ABSTAINED,) * (label is None), extras)


def read_prompt(value: object) -> Prompt | None:
    """Read the prompt of a setting."""
    return None if value is None else Prompt.read(value)


@register_system
class PromptSmooth(EvaluationSystem):
    """PromptSmooth: TPT's step on Gaussian copies of the image; the paper uses sigma 0.1, 0.25, 0.5 and 1."""

    name: ClassVar[str] = "promptsmooth"
    only: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **ONLY,
        "init": ("words", "coop"),
        "aggregate": (CLEAN, "votes", "certificate"),
    }

    sigma: float = Field(0.25, gt=0, allow_inf_nan=False, description="deviation of the noise on pixels in [0, 1]")
    copies: int = Field(100, ge=1, description="noisy copies that a prompt is tuned on")
    selection_votes: int = Field(100, ge=1, description="votes that choose the class (N₀)")
    samples: int = Field(10_000, ge=1, description="votes that certify it (N)")
    alpha: float = Field(0.001, gt=0, lt=1, description="probability that a certificate is wrong")
    batch: int = Field(100, ge=1, description="copies encoded together")
    noise_prompt: Annotated[InstanceOf[Prompt] | None, BeforeValidator(read_prompt)] = Field(
        None, description="prompt of words to tune (default: the published one of a data set, or the task's)"
    )

    def settings_on(self, dataset: Dataset, prompts: Sequence[Prompt] | None) -> Mapping[str, Json]:
        """Return the published prompt of a data set, unless another one was given."""
        published = NOISE_PROMPTS.get(dataset.registered_name.partition("-")[0])
        if published is None or prompts is not None or self.noise_prompt is not None:
            return {}
        return {"noise_prompt": published.to_json()}

    def start(self, task: Task, method: Method) -> tuple[str, Prompt]:
        """Return the initial prompt of a method with its name in the results."""
        init = init_of(method)
        if isinstance(init, Coop):
            return init.name, init.learned.prompt()
        prompt = self.noise_prompt or task.prompt
        return prompt.name, prompt

    def check(self, setup: Setup) -> None:
        """See :class:`otpt.methods.System`."""
        _, prompt = self.start(setup.task, setup.methods[0])
        tokenize_prompts(text_encoder(setup.backbone), setup.task.classes, prompt)

    def prepare(self, setup: Setup) -> Sequence[PromptSmoothGroup]:
        """See :class:`otpt.methods.System`."""
        name, prompt = self.start(setup.task, setup.methods[0])
        return [PromptSmoothGroup(setup, name, prompt, self)]

    def prompt_name(self, task: Task, protocol: Protocol, method: Method) -> str:
        """See :class:`otpt.methods.System`."""
        name, _ = self.start(task, method)
        return name

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """Return the numbers of the noise, and the prompt if it is not the task's."""
        facts: dict[str, Json] = {"smoothing": self.model_dump(exclude={"noise_prompt"})}
        if self.noise_prompt is not None and method.starts_from_words:
            facts["noise_prompt"] = self.noise_prompt.to_json()
        return facts


for _name in ("votes", "certificate"):
    AGGREGATIONS[_name] = Component(_name, only={"adapt": (PromptSmooth.name,)})
