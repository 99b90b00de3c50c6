"""The one configuration: JSON and back, objects in memory, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from otpt.settings import Fpp, Settings

from otpt import Method, Prompt, ViewRecipe
from otpt.errors import OtptError

EXAMPLES = [
    {},
    {"methods": ["tpt", "o-tpt+sals"], "classes": ["cat", "dog"], "prompt": "a picture of", "views": 16, "seed": 3},
    {"prompts": [Prompt("a photo of a", tokens=2), "an image of"], "budget": 32, "augmix": False, "family": "shift"},
    {"method": Method("mine", {"entropy": 1.0, "orthogonality": 3.0}), "views": ViewRecipe(n_views=4, flip=0.0)},
    {"templates": ["a photo of a {}."], "reject": True, "fpp": {"steps": 3}},
    {"classes": {"cat": "a small animal", "dog": ["a loyal animal", "it barks"]}},
]


@pytest.mark.parametrize("given", EXAMPLES)
def test_json_and_back(given):
    settings = Settings(**given)
    assert Settings(**json.loads(settings.model_dump_json())) == settings


@pytest.mark.parametrize(
    ("given", "offending"),
    [
        ({"vews": 8}, "mean: views"),
        ({"recipe": ViewRecipe()}, "'recipe'"),
        ({"views": 0}, "0"),
        ({"seed": 1.5}, "1.5"),
        ({"budget": 0}, "0"),
        ({"family": "pets"}, "'pets'"),
        ({"methods": ["otp"]}, "'otp'"),
        ({"methods": []}, "methods"),
        ({"method": "tpt", "methods": ["tpt"]}, "method"),
        ({"classes": "cat"}, "'cat'"),
        ({"classes": ["cat"], "method": "o-tpt"}, "'cat'"),
        ({"classes": ["cat", "cat"]}, "'cat'"),
        ({"coverage": 0.9}, "coverage"),
        ({"calibrations": ["a.json"], "coverage": 1.5}, "1.5"),
        ({"reject": "nothing"}, "'nothing'"),
        ({"reject_threshold": 0.5}, "threshold"),
        ({"fpp": {"steps": 0}}, "steps"),
        ({"templates": "a photo of a {}."}, "'a photo of a {}.'"),
        ({"prompts": ["[CLS]"]}, "words"),
    ],
)
def test_bad_input(given, offending):
    with pytest.raises(OtptError) as error:
        Settings(**given)
    assert offending in str(error.value)
    assert "\n" not in str(error.value)


def test_replace_validates_and_keeps_what_was_given():
    settings = Settings(classes=["cat", "dog"], views=16)
    assert settings.replace(seed=3).recipe.n_views == 16
    assert settings.replace(budget=64).recipe.rounds == (8, 32)
    with pytest.raises(OtptError):
        settings.replace(views=-1)


def test_every_field_has_a_description():
    for model in (Settings, Fpp):
        assert all(field.description for field in model.model_fields.values())


def test_importing_it_does_not_import_torch():
    code = "import sys, otpt.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
