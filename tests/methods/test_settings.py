"""Settings and extras of functions, calibrations that see all views, adaptations that give text features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from oracles.data.images import image
from oracles.models.tiny import tiny_backbone
from torch import Tensor

import otpt
from otpt import Classifier, Method, OtptError, Prediction, ViewRecipe
from otpt.methods import compose
from otpt.registry import Fraction

pytestmark = pytest.mark.usefixtures("registries")

NAMES = ("cat", "dog", "red panda", "sea")
EXACT = {"rtol": 0, "atol": 1e-10}


@cache
def backbone() -> otpt.Backbone:
    return tiny_backbone("vit", "float64")


def classifier() -> Classifier:
    return Classifier(backbone(), views=ViewRecipe(n_views=12)).set_classes(NAMES)


def predicted(method: str | Method) -> Prediction:
    (found,) = classifier().compare(image(1), [method], image_id="p").values()
    return found


def logits() -> Tensor:
    """Zero-shot logits (V, C) of the same image."""
    features = classifier().encode_views(image(1), image_id="p")
    return backbone().logit_scale * features @ texts().T


def texts() -> Tensor:
    found = []

    @otpt.aggregation
    def spy_on_texts(text_features: Tensor, probabilities: Tensor) -> Tensor:
        found.append(text_features)
        return probabilities[0]

    predicted("zero-shot+spy-on-texts")
    return found[0]


@dataclass(frozen=True)
class BlendSettings:
    blend_share: Fraction = 0.25
    blend_power: float = 1.0


def test_a_record_of_settings() -> None:
    """The fields of a frozen dataclass are settings like parameters with a default."""
    received = []

    @otpt.aggregation
    def blend(probabilities: Tensor, settings: BlendSettings = BlendSettings()) -> Tensor:  # noqa: B008
        received.append(settings)
        return probabilities[0]

    assert compose("blend").defaults == {"blend_share": 0.25, "blend_power": 1.0}
    predicted("blend[blend-power=2]")
    assert received == [BlendSettings(0.25, 2.0)]
    with pytest.raises(OtptError, match="blend-share"):
        compose("blend[blend-share=3]")


def test_a_setting_changes_what_a_function_is_given() -> None:
    @otpt.aggregation
    def blend(probabilities: Tensor, share: float = 0.25) -> tuple[Tensor, dict[str, float]]:
        return share * probabilities[0] + (1 - share) * probabilities.mean(dim=0), {"share": share}

    method = compose("zero-shot+blend")
    assert list(method.defaults) == ["share"]
    assert method.has_setting("share")
    shares = logits().softmax(dim=1)
    for value, changed in ((0.25, method), (0.75, method.override({"share": "0.75"}))):
        found = predicted(changed)
        expected = value * shares[0] + (1 - value) * shares.mean(dim=0)
        torch.testing.assert_close(torch.from_numpy(found.probabilities), expected, **EXACT)
        assert found.extras["share"] == value


def test_an_objective_with_another_setting_has_another_gradient() -> None:
    @otpt.objective(weight=3.0)
    def power_of_cosines(text_features: Tensor, power: float = 2.0) -> Tensor:
        return (text_features @ text_features.mT).abs().pow(power).mean(dim=(-2, -1))

    method = compose("tpt+power-of-cosines")
    plain, other = predicted(method), predicted(method.override({"power": 4.0}))
    assert abs(plain.probabilities - other.probabilities).max() > 1e-6
    written_out = replace(method, settings={"power": 2.0})
    assert (predicted(written_out).probabilities == plain.probabilities).all()


def test_a_calibration_may_see_all_views() -> None:
    @otpt.calibrator(views=True)
    def by_the_spread(logits: Tensor, zero_shot: Tensor, mean_cosine: float) -> tuple[Tensor, dict[str, float]]:
        assert logits.shape == zero_shot.shape == (12, 4)
        temperature = 1 + float(logits.std(dim=0).mean()) + mean_cosine
        return logits / temperature, {"temperature": temperature}

    rows, cosines = logits(), texts() @ texts().T
    mean = float((cosines.sum() - cosines.trace()) / 12)
    temperature = 1 + float(rows.std(dim=0).mean()) + mean
    found = predicted("zero-shot+by-the-spread")
    torch.testing.assert_close(torch.from_numpy(found.probabilities), (rows[0] / temperature).softmax(dim=0), **EXACT)
    assert found.extras["temperature"] == pytest.approx(temperature, abs=1e-12)
    assert predicted("tpt+by-the-spread").label == predicted("tpt").label


def test_an_adaptation_may_give_text_features() -> None:
    @otpt.adaptation(gives="texts")
    def towards_the_image(features: Tensor, text_features: Tensor, step: float = 0.1) -> Tensor:
        moved = text_features + step * features[0]
        return moved / moved.norm(dim=1, keepdim=True)

    @otpt.calibrator(views=True)
    def spy_on_adapted(logits: Tensor, adapted_text_features: Tensor, text_features: Tensor) -> Tensor:
        spied.append((adapted_text_features, text_features))
        return logits

    spied: list[tuple[Tensor, Tensor]] = []
    features = classifier().encode_views(image(1), image_id="p")
    initial = texts()
    moved = initial + 0.1 * features[0]
    moved = moved / moved.norm(dim=1, keepdim=True)
    found = predicted("towards-the-image+spy-on-adapted")
    torch.testing.assert_close(
        torch.from_numpy(found.probabilities), (backbone().logit_scale * features[0] @ moved.T).softmax(dim=0), **EXACT
    )
    torch.testing.assert_close(spied[0][0], moved, **EXACT)
    torch.testing.assert_close(spied[0][1], initial, **EXACT)
    cosines = moved @ moved.T
    assert found.extras["mean_cosine"] == pytest.approx(float((cosines.sum() - cosines.trace()) / 12), abs=1e-12)


def test_what_a_gate_says_becomes_a_column() -> None:
    @otpt.gate
    def unsure(zero_shot: Tensor, threshold: float = 0.0) -> tuple[bool, dict[str, float]]:
        confidence = float(zero_shot[0].softmax(dim=0).max())
        return confidence > threshold, {"seen": confidence}

    found = predicted("tpt+unsure")
    assert found.extras["adapted"] == 1.0
    assert found.extras["seen"] == pytest.approx(predicted("zero-shot").confidence, abs=1e-6)
    kept = predicted(compose("tpt+unsure").override({"threshold": 1.0}))
    assert kept.probabilities == pytest.approx(predicted("zero-shot").probabilities, abs=1e-6)


def test_extras_must_be_numbers() -> None:
    @otpt.aggregation
    def wordy(probabilities: Tensor) -> tuple[Tensor, dict[str, str]]:
        return probabilities[0], {"mood": "good"}

    with pytest.raises(OtptError, match=r"'wordy' returned extras that are not numbers for the image .*name: number"):
        predicted("zero-shot+wordy")
