"""What is said when a function of one's own goes wrong."""

from __future__ import annotations

import re
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
    ("decorator", "body", "method", "offending"),
    [
        ("aggregation", "def mine(probabilities): return probabilities[99]", "mine", "IndexError"),
        ("aggregation", "def mine(probabilities): return probabilities", "mine", "(20, 4)"),
        ("aggregation", "def mine(probabilities): return probabilities[0].tolist()", "mine", "a list"),
        ("aggregation", "def mine(probabilities): return probabilities[0] / 0 * 0", "mine", "nan"),
        ("aggregation", "def mine(probabilities): return 2 * probabilities[0]", "mine", "sum to 2"),
        ("aggregation", "def mine(probabilities): return probabilities[0] - 0.25", "mine", "from -0.2"),
        ("aggregation", "def mine(probabilities): return None", "mine", "NoneType"),
        ("calibrator", "def mine(logits): return logits[0, :2]", "tpt+mine", "(2,)"),
        ("calibrator", "def mine(logits): return logits / 0", "tpt+mine", "nan"),
        ("calibrator", "def mine(logits): raise ValueError('no.')", "tpt+mine", "ValueError: no."),
        ("gate", "def mine(zero_shot): return zero_shot > 0", "tpt+mine", "(20, 4)"),
        ("gate", "def mine(zero_shot): return 'yes'", "tpt+mine", "a str"),
        ("gate", "def mine(zero_shot): return zero_shot.nothing", "tpt+mine", "AttributeError"),
        ("adaptation", "def mine(zero_shot): return zero_shot[0]", "mine", "(4,)"),
        ("adaptation", "def mine(zero_shot): return 1 / 0", "mine", "ZeroDivisionError"),
        ("objective", "def mine(text_features): return text_features.sum()", "tpt+mine", "of shape ()"),
        ("objective", "def mine(text_features): return text_features.sum(dim=(-2, -1)) * float('nan')", "tpt+mine",
         "nan"),
        ("objective", "def mine(text_features): return text_features.detach().sum(dim=(-2, -1))", "tpt+mine",
         "without gradient"),
        ("objective", "def mine(text_features): return text_features @ text_features", "tpt+mine", "RuntimeError"),
        ("objective", "def mine(logits): return logits.mean(dim=-1)", "mine", "(2,)"),
        ("objective", "def mine(logits): raise KeyError('k')", "mine", "KeyError"),
    ],
)  # fmt: skip
def test_bad_return_value(decorator: str, body: str, method: str, offending: str, tmp_path: Path) -> None:
    """One sentence with the kind of function, its name, the image and what went wrong."""
    otpt.load_plugin(plugin(tmp_path, f"@otpt.{decorator}\n{body}\n"))
    said = sentence(method)
    assert said.startswith(f"The {decorator} 'mine' ")
    assert "'image 1'" in said
    assert offending in said
    assert "\n" not in said


def test_one_view_is_not_enough_for_a_function_of_all_views() -> None:
    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    @otpt.gate
    def always(zero_shot: Tensor) -> bool:
        return True

    single = ViewRecipe(n_views=1)
    for name in ("own-mean", "tpt+own-mean", "tpt+always"):
        with pytest.raises(OtptError, match=re.escape(repr(name))):
            Classifier(backbone(), name, views=single)
    assert Classifier(backbone(), "tpt", views=single).method.name == "tpt"
