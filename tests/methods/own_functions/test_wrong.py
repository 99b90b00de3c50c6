"""What is said when a function of one's own goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oracles.methods.own_functions import backbone, classifier, image, plugin
from torch import Tensor

import otpt
from otpt import Classifier, Method, OtptError, ViewRecipe

pytestmark = pytest.mark.slow


def sentence(method: str | Method, source: Any = None) -> str:
    with pytest.raises(OtptError) as error:
        classifier().compare(image(1) if source is None else source, [method])
    return str(error.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("probabilities[99]", "failed on the image 'image 1', which has probabilities of shape (20, 4): IndexError: "),
        (
            "probabilities",
            "returned a tensor of shape (20, 4) for the image 'image 1'; expected a tensor of shape (4,)",
        ),
        ("probabilities[0].tolist()", "returned a list for the image 'image 1'; expected a tensor of shape (4,)"),
        ("probabilities[0] / 0 * 0", "returned nan or infinity in a tensor of shape (4,) for the image 'image 1'"),
        ("2 * probabilities[0]", "that sum to 2 for the image 'image 1'; expected probabilities of shape (4,)"),
        ("probabilities[0] - 0.25", "returned numbers from -0.2"),
        ("None", "returned a NoneType for the image"),
    ],
)
def test_wrong_aggregations(body: str, words: str, tmp_path: Path) -> None:
    otpt.load_plugin(plugin(tmp_path, f"@otpt.aggregation\ndef mine(probabilities):\n    return {body}\n"))
    said = sentence("zero-shot+mine")
    assert said.startswith("The aggregation 'mine' ")
    assert words in said
    assert said.count("\n") == 0


@pytest.mark.parametrize(
    ("decorator", "body", "method", "words"),
    [
        ("calibration", "def mine(logits): return logits[0, :2]", "tpt+mine",
         "The calibration 'mine' returned a tensor of shape (2,) for the image 'image 1'; expected a tensor of "
         "shape (1, 4)"),
        ("calibration", "def mine(logits): return logits / 0", "tpt+mine", "The calibration 'mine' returned nan"),
        ("calibration", "def mine(logits): raise ValueError('no.')", "tpt+mine",
         "The calibration 'mine' failed on the image 'image 1', which has logits of shape (1, 4): ValueError: no."),
        ("gate", "def mine(zero_shot): return zero_shot > 0", "tpt+mine",
         "The gate 'mine' returned a tensor of shape (20, 4) for the image 'image 1'; expected True or False."),
        ("gate", "def mine(zero_shot): return 'yes'", "tpt+mine", "The gate 'mine' returned a str"),
        ("gate", "def mine(zero_shot): return zero_shot.nothing", "tpt+mine", "The gate 'mine' failed on the image"),
        ("adaptation", "def mine(zero_shot): return zero_shot[0]", "mine",
         "The adaptation 'mine' returned a tensor of shape (4,) for the image 'image 1'; expected a tensor of "
         "shape (20, 4)"),
        ("adaptation", "def mine(zero_shot): return 1 / 0", "mine", "ZeroDivisionError: division by zero."),
        ("objective", "def mine(text_features): return text_features.sum()", "tpt+mine",
         "The objective 'mine' returned a tensor of shape () for text features of shape (1, 4, 32); expected a tensor "
         "of shape (1,), one number per image. The image was 'image 1'."),
        ("objective", "def mine(text_features): return text_features.sum(dim=(-2, -1)) * float('nan')", "tpt+mine",
         "The objective 'mine' returned nan or infinity for text features of shape (1, 4, 32). The image was "
         "'image 1'."),
        ("objective", "def mine(text_features): return text_features.detach().sum(dim=(-2, -1))", "tpt+mine",
         "The objective 'mine' returned a number without gradient"),
        ("objective", "def mine(text_features): return text_features @ text_features", "tpt+mine",
         "The objective 'mine' failed on text features of shape (1, 4, 32): RuntimeError: "),
        ("objective(on='views')", "def mine(logits): return logits.mean(dim=-1)", "mine",
         "The objective 'mine' returned a tensor of shape (2,) for logits of shape (2, 4); expected a tensor of "
         "shape ()"),
        ("objective(on='views')", "def mine(logits): raise KeyError('k')", "mine", "The image was 'image 1'."),
    ],
)  # fmt: skip
def test_other_wrong_functions(decorator: str, body: str, method: str, words: str, tmp_path: Path) -> None:
    otpt.load_plugin(plugin(tmp_path, f"@otpt.{decorator}\n{body}\n"))
    assert words in sentence(method)
    assert sentence(method).count("\n") == 0


def test_a_function_of_ours_that_is_called_in_ones_own_is_named_too() -> None:
    @otpt.calibration
    def mine(logits: Tensor, zero_shot: Tensor) -> Tensor:
        from otpt.calibration import sals

        return sals(logits, zero_shot[:, :2])

    assert sentence("tpt+mine").startswith("The calibration 'mine' failed on the image 'image 1', which has logits")


def test_one_view_is_not_enough_for_a_function_of_all_views() -> None:
    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    @otpt.gate
    def always(zero_shot: Tensor) -> bool:
        return True

    single = ViewRecipe(n_views=1)
    for name in ("own-mean", "tpt+own-mean", "tpt+always"):
        with pytest.raises(OtptError, match=r"needs several views of an image, but the recipe has one"):
            Classifier(backbone(), name, recipe=single)
    assert Classifier(backbone(), "tpt", recipe=single).method.name == "tpt"
