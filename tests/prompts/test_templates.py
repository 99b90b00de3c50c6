"""Templates: the published lists, averaged text features against the model's own text tower, and predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from open_clip import SimpleTokenizer
from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES, SIMPLE_IMAGENET_TEMPLATES
from oracles.models.tiny import by_threads, tiny_backbone, tiny_clip
from torch import Tensor

import otpt
from otpt.backbones import Backbone
from otpt.data import list_datasets
from otpt.errors import OtptError
from otpt.methods import Protocol, Task, columns, get_method, get_methods
from otpt.methods.state import prompt_state
from otpt.prompts import FixedEncoder, Templates, dataset_templates, published_templates, template_features
from otpt.prompts.prompt import _published

NAMES = ["cat", "red_panda", "2012 BMW M3 coupe", "white-tailed eagle (adult)", "東京タワー"]
MINE = Templates("mine", ["{} texture.", "a photo of a {}, a type of pet.", "{}", "two words: {} outside"])


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone("vit", "float64")


def literal(sentences: list[str], names: list[str] = NAMES) -> Tensor:
    """The mean of unit features over templates, made unit: 77 tokens, template by template, class by class."""
    model, tokenizer = tiny_clip("vit", dtype=torch.float64), SimpleTokenizer()
    rows = []
    for name in names:
        total = torch.zeros(32, dtype=torch.float64)
        for sentence in sentences:
            (feature,) = model.encode_text(tokenizer([sentence.format(name.replace("_", " "))]))
            total += feature / feature.norm()
        mean = total / len(sentences)
        rows.append(mean / mean.norm())
    return torch.stack(rows)


def test_published_lists_are_those_of_open_clip() -> None:
    for name, known in (("templates-80", OPENAI_IMAGENET_TEMPLATES), ("templates-7", SIMPLE_IMAGENET_TEMPLATES)):
        assert list(published_templates(name).sentences) == [make("{}") for make in known]


def test_templates_of_data_sets() -> None:
    assert set(_published().datasets) < {entry.name for entry in list_datasets()}
    assert dataset_templates("dtd").sentences == ("{} texture.",)
    assert dataset_templates("eurosat").sentences == ("a centered satellite photo of {}.",)
    for unknown in ("", "my-folder", "covid"):
        assert dataset_templates(unknown).sentences == ("a photo of a {}.",)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("templates", "budget"),
    [(MINE, 10), (MINE, 300_000), (MINE, 2**31), (published_templates("templates-7"), 2**31)],
)
def test_features_are_averaged_over_whole_sentences(
    templates: Templates, plain: bool, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny_backbone("vit", "float64")
    if plain:
        monkeypatch.setattr(backbone.text, "causal", None)
    encoder = FixedEncoder(template_features(backbone.text, NAMES, templates, memory_budget=budget))
    found = encoder.encode(torch.empty(2, 0, backbone.text.width, dtype=torch.float64))
    torch.testing.assert_close(found, literal(list(templates.sentences)).expand(2, -1, -1), rtol=0, atol=1e-12)


def test_a_name_in_brackets_before_a_comma_is_tokenised_as_written(backbone: Backbone) -> None:
    """ "(adult)," is not "(adult) ,": the place of the name gets no spaces of its own."""
    templates = Templates("mine", ["{}, a bird."])
    assert templates.texts(["eagle (adult)"]) == [["eagle (adult), a bird."]]
    text = prompt_state(backbone, NAMES, templates)
    torch.testing.assert_close(text.text_features, literal(["{}, a bird."]), rtol=0, atol=1e-12)
    assert not torch.allclose(text.text_features, literal(["{} , a bird."]), rtol=0, atol=1e-6)
    assert (text.init.shape, text.linearisation.graph_bytes) == ((0, 64), 0)


@pytest.mark.equality
def test_any_number_of_threads_gives_the_same_bits() -> None:
    backbone = tiny_backbone("vit")
    found = by_threads(lambda: prompt_state(backbone, NAMES, published_templates("templates-7")).text_features)
    assert all(torch.equal(found[0], each) for each in found)


@pytest.mark.usefixtures("registries")
def test_methods_predict_under_templates(backbone: Backbone) -> None:
    """Zero-shot, calibrations and functions of one's own need text features only."""

    @otpt.adaptation
    def nearer_to_dog(logits, text_features):
        """Logits plus what the last class's text says of the others."""
        return logits + text_features @ text_features[-1]

    names = ["cat", "red panda", "dog"]
    clf = otpt.Classifier(backbone, "templates-7", views=otpt.ViewRecipe(n_views=4))
    clf.set_classes(names)
    views = backbone.encode_pixels(torch.randn(4, 3, 32, 32, dtype=torch.float64))
    methods = ["templates-7", "templates", "dataset-templates+zero-shot", "templates+ts", "templates+nearer-to-dog"]
    chosen = [otpt.get_method(name) for name in methods]
    chosen = [each.override({"templates": MINE}) if each.init == "templates" else each for each in chosen]
    (answer,) = clf.classify_features(views[None], chosen)
    seven = [make("{}") for make in SIMPLE_IMAGENET_TEMPLATES]
    mine = literal(list(MINE.sentences), names)
    logits = backbone.logit_scale * mine @ views[0]
    for name, expected in {
        "templates-7": backbone.logit_scale * literal(seven, names) @ views[0],
        "templates": logits,
        "dataset-templates+zero-shot": backbone.logit_scale * literal(["a photo of a {}."], names) @ views[0],
        "templates+ts": logits / 1.16,
        "templates+nearer-to-dog": logits + mine @ mine[-1],
    }.items():
        np.testing.assert_allclose(answer[name].probabilities, expected.softmax(-1).numpy(), rtol=0, atol=1e-10)


def test_the_prompt_column_says_the_init() -> None:
    mine = get_method("templates").override({"templates": MINE})
    methods = get_methods(["templates-80", mine, "dataset-templates", "fpp+tpt", "zero-shot"])
    task, protocol = Task(classes=("cat", "dog")), Protocol(methods=methods, dataset="dtd")
    assert [prompt for prompt, _ in columns([task], protocol, methods)] == [
        "templates-80",
        "mine",
        "dataset-templates",
        "fpp",
        "a photo of a",
    ]


@pytest.mark.parametrize(
    ("name", "sentences", "message"),
    [
        ("mine", [], "'mine'"),
        ("mine", "a photo of a {}.", "list"),
        ("mine", ["a photo."], "'a photo.'"),
        ("mine", ["{} and {}."], "'{} and {}.'"),
        ("mine", [3], "3"),
        (" ", ["{}."], "name"),
    ],
)
def test_bad_templates(name: str, sentences: list[str], message: str) -> None:
    with pytest.raises(OtptError, match=message):
        Templates(name, sentences)


def test_templates_of_ones_own_must_be_given(backbone: Backbone) -> None:
    with pytest.raises(OtptError, match="'templates'"):
        otpt.Classifier(backbone, "templates").set_classes(["cat", "dog"])


def test_a_text_that_does_not_fit_is_told_at_once(backbone: Backbone) -> None:
    long = "very " * 70 + "long"  # fits the shortest template, not the longest
    for templates in (["{}.", "a black and white photo of the {}."], ["a black and white photo of the {}.", "{}."]):
        clf = otpt.Classifier(backbone, get_method("templates").override({"templates": Templates("mine", templates)}))
        with pytest.raises(OtptError, match="77"):
            clf.set_classes(["cat", long])
    otpt.Classifier(backbone, "templates", templates=Templates("mine", ["{}."])).set_classes(["cat", long])
