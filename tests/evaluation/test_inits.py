"""Methods by what they start from, under ``evaluate``: learned prompts, computed contexts, templates, attributes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.methods.maple import maple_state
from oracles.models.tiny import tiny_backbone
from oracles.runs.evaluation_bench import (
    COUNT,
    NAMES,
    RECIPE,
    backbone,
    confidences,
    dataset,
    image,
    image_number,
    rows,
    settings,
)

from otpt import Classifier, Method
from otpt.backbones.fast import pooled as first
from otpt.data.dataset import stratified_order
from otpt.errors import OtptError
from otpt.evaluation import evaluate
from otpt.evaluation.request import overlaps
from otpt.features import FeatureCache
from otpt.methods import get_method
from otpt.methods.fpp import Fpp, pretrain
from otpt.methods.state import prompt_state
from otpt.prompts import Prompt, Templates, dataset_templates
from otpt.prompts.learned import CocoopContext, CoopContext, MaplePrompts, fingerprint, read_learned, write_learned
from otpt.views import ViewRecipe, make_views

pytestmark = pytest.mark.slow


def normal(*shape: int, seed: int) -> torch.Tensor:
    return 0.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def coop(seed: int = 0) -> CoopContext:
    return CoopContext(normal(4, 64, seed=seed))


def cocoop() -> CocoopContext:
    shapes = ((4, 64), (2, 32), (2,), (64, 2), (64,))
    return CocoopContext(*(normal(*shape, seed=i) for i, shape in enumerate(shapes)))


def given_context(name: str, context: object | None) -> Method:
    """A method with its learned prompt."""
    return get_method(name) if context is None else get_method(name).override({"context": context})


def with_attributes(name: str) -> Method:
    method = get_method(name)
    return method.override({"attributes": ATTRIBUTES}) if method.init == "attributes" else method


def written(folder: Path, learned: CocoopContext) -> Path:
    path = folder / "written.safetensors"
    path.write_bytes(write_learned(path, learned))
    return path


def maple(folder: Path) -> MaplePrompts:
    torch.save({"state_dict": maple_state("vit", 2)}, folder / "maple.pt")
    found = read_learned(folder / "maple.pt")
    assert isinstance(found, MaplePrompts)
    return found


def test_of_a_limited_evaluation_the_images_that_it_evaluates_are_compared_with_those_of_the_training() -> None:
    data = dataset(12)
    evaluated = stratified_order(data)[:3]
    keys = data.image_keys()
    for chosen, expected in ((evaluated, 1), (sorted(set(range(12)) - set(evaluated)), 0)):
        learned = CoopContext(normal(4, 64, seed=0), images=tuple(keys[index] for index in chosen))
        sentences = list(overlaps(settings(methods=[given_context("coop", learned)], limit=3), data))
        assert len(sentences) == expected
        assert all(each.startswith("3 of the 3 images of 'tiny'") for each in sentences)


@pytest.mark.equality
def test_all_inits_in_one_pass(tmp_path: Path) -> None:
    methods = ["zero-shot", "coop", "coop+o-tpt", "cocoop", "cocoop+o-tpt", "maple", "maple+o-tpt", "o-tpt"]
    contexts = {"coop": coop(), "cocoop": cocoop(), "maple": maple(tmp_path)}
    chosen = [given_context(name, contexts.get(name.partition("+")[0])) for name in methods]
    found = confidences(tmp_path / "run", settings(methods=chosen))
    words = "a photo of a"
    assert list(found) == [
        (words, "zero-shot"), ("coop", "coop"), ("coop", "coop+o-tpt"), ("cocoop", "cocoop"),
        ("cocoop", "cocoop+o-tpt"), ("maple", "maple"), ("maple", "maple+o-tpt"), (words, "o-tpt"),
    ]  # fmt: skip
    assert len({tuple(values) for values in found.values()}) == len(methods), "each says something of its own"

    plain = confidences(tmp_path / "words", settings(methods=["zero-shot", "o-tpt"]))
    assert plain == {column: found[column] for column in plain}, "learned prompts change nothing for the others"
    given = settings(methods=["zero-shot", "o-tpt"], prompts=[coop().prompt()])
    by_prompt = list(confidences(tmp_path / "prompt", given).values())
    assert by_prompt == [found["coop", "coop"], found["coop", "coop+o-tpt"]]


def test_both_conditions_of_cocoop(tmp_path: Path) -> None:
    """The net sees the clean view's feature of norm one, or as the image tower gives it."""
    context, clean = cocoop(), ViewRecipe(n_views=1)
    found = {}
    for condition in ("unit", "raw"):
        method = get_method("cocoop").override({"condition": condition, "context": context})
        given = settings(methods=[method])
        (found[condition],) = confidences(tmp_path / condition, given).values()
    for i in range(COUNT):
        views = make_views(image(i), clean, backbone().preprocessing, seed=0, image_id="any")
        with torch.no_grad():
            raw = first(backbone().visual(torch.from_numpy(views)))
        unit = raw / raw.norm(dim=-1, keepdim=True)
        for condition, feature in (("unit", unit), ("raw", raw)):
            (own,) = context.starts(feature)
            text = prompt_state(backbone(), NAMES, Prompt.learned(own))
            expected = float(text.initial(unit[None]).logits[0].softmax(-1).max())
            np.testing.assert_allclose(found[condition][i], expected, atol=1e-5)
    assert found["unit"] != found["raw"]


def test_files_by_data_set_and_the_configuration(tmp_path: Path) -> None:
    first_set, second = dataset(2, "emoji/one"), dataset(2, "two")
    for name, learned in (("emoji-one", coop(1)), ("two", coop(2))):
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(write_learned(path, learned))
    given = settings(methods=[f"coop[context={tmp_path}/{{dataset}}.safetensors]"])
    run = evaluate([first_set, second], backbone(), given, out=tmp_path / "run").run
    stored = [each.columns[0].prompt for each in run.datasets]
    assert stored == [{"name": "coop", "fingerprint": fingerprint(coop(number))} for number in (1, 2)]
    path = tmp_path / "two.safetensors"
    path.write_bytes(write_learned(path, coop(3)))
    with pytest.raises(
        OtptError, match=r"another configuration: 'coop\[context=.*\]' on 'two': prompt\.fingerprint is"
    ):
        evaluate([first_set, second], backbone(), given, out=tmp_path / "run")


def test_what_is_refused(tmp_path: Path) -> None:
    def sentence(**changes: object) -> str:
        with pytest.raises(OtptError) as error:
            evaluate(dataset(2), backbone(), settings(**changes), out=tmp_path / "run")
        assert not (tmp_path / "run").exists(), "nothing is begun"
        return str(error.value)

    assert "'coop' needs a learned prompt" in sentence(methods=["coop+tpt"])
    assert "no method starts from words (coop)" in sentence(methods=[given_context("coop", coop())], prompts=["a"])
    assert "none.pt" in sentence(methods=[given_context("coop", tmp_path / "none.pt")])
    assert "'cocoop'" in sentence(methods=[f"coop[context={written(tmp_path, cocoop())}]"])
    wide = CoopContext(normal(4, 512, seed=0))
    assert "width 512" in sentence(methods=[given_context("coop", wide)])
    other = CoopContext(normal(6, 4, 64, seed=0), ("a", "b", "c", "d", "e", "f"))
    assert "its class 1 is" in sentence(methods=[given_context("coop", other)])
    with pytest.raises(OtptError, match="'context'"):
        get_method("tpt").override({"context": coop()})


FPP = Fpp(fpp_steps=3, fpp_seed=5)


@pytest.mark.equality
def test_fpp_is_the_method_from_its_vectors(tmp_path: Path) -> None:
    given = settings(methods=["fpp[fpp-steps=3,fpp-seed=5]", "fpp[fpp-steps=3,fpp-seed=5]+tpt", "tpt"])
    found = confidences(tmp_path / "run", given)
    alone, tuned = "fpp[fpp-steps=3,fpp-seed=5]", "fpp[fpp-steps=3,fpp-seed=5]+tpt"
    assert list(found) == [("fpp", alone), ("fpp", tuned), ("a photo of a", "tpt")]
    vectors = pretrain(tiny_backbone("vit"), NAMES, FPP).vectors
    assert vectors is not None
    plain = confidences(tmp_path / "plain", settings(methods=["zero-shot", "tpt"], prompts=[Prompt.learned(vectors)]))
    assert list(plain.values()) == [found["fpp", alone], found["fpp", tuned]]


def test_one_context_for_all_seeds_in_the_cache(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    given = settings(methods=[get_method("fpp+tpt").override({"fpp-steps": 3, "fpp-seed": 5})], seeds=[0, 1])
    run = evaluate([dataset(COUNT), dataset(COUNT, "two")], backbone(), given, out=tmp_path / "run", cache=cache).run
    assert cache.info().contexts == 1, "both sets have the same classes"
    (column,) = run.datasets[0].columns
    assert column.prompt["fpp"]["fpp_seed"] == 5
    assert column.prompt["name"] == "fpp"
    other = settings(methods=[get_method("fpp+tpt").override({"fpp-steps": 3, "fpp-seed": 6})], seeds=[0, 1])
    with pytest.raises(OtptError, match=r"prompt\.fpp\.fpp_seed is 5 there and 6 now"):
        evaluate([dataset(COUNT), dataset(COUNT, "two")], backbone(), other, out=tmp_path / "run", cache=cache)


def test_templates_of_the_data_set(tmp_path: Path) -> None:
    given = settings(methods=["dataset-templates", "zero-shot"])
    dtd = confidences(tmp_path / "dtd", given, "dtd")
    assert list(dtd) == [("dataset-templates", "dataset-templates"), ("a photo of a", "zero-shot")]
    mine = settings(methods=[get_method("templates").override({"templates": Templates("mine", ["{} texture."])})])
    assert confidences(tmp_path / "mine", mine) == {
        ("mine", "templates"): dtd["dataset-templates", "dataset-templates"]
    }
    own = confidences(tmp_path / "own", given, "own")
    torch.testing.assert_close(*(torch.tensor(values) for values in own.values()), rtol=0, atol=1e-6)
    config = evaluate(dataset(COUNT, "dtd"), backbone(), given, out=tmp_path / "dtd").run.config
    recorded = config.datasets[0].columns[0].prompt
    assert recorded == {"name": "dataset-templates", "templates": dataset_templates("dtd").digest}
    changed = settings(methods=[get_method("templates").override({"templates": Templates("mine", ["{} texture!"])})])
    with pytest.raises(OtptError, match="templates"):
        confidences(tmp_path / "mine", changed)


ATTRIBUTES = {name: [f"small {i}", f"old {i}"] for i, name in enumerate(NAMES)}
METHODS = ["tca", "attributes", "attributes+o-tpt", "a-tpt", "soc+static", "zero-shot"]


@pytest.mark.equality
def test_an_evaluation_says_what_the_classifier_says(tmp_path: Path) -> None:
    """With a cache of features and gradients, filled by a first run and used by a second one."""
    methods = [with_attributes(name) for name in METHODS]
    given = settings(methods=methods)
    cache = FeatureCache(tmp_path / "cache")
    for name in ("first", "second"):
        evaluate(dataset(3), backbone(), given, out=tmp_path / name, cache=cache)
    found, again = (
        {(image_number(row), row["method"]): row["confidence"] for row in rows(tmp_path / name)}
        for name in ("first", "second")
    )
    assert found == again
    assert len(found) == 3 * len(METHODS)
    classifier = Classifier(backbone(), methods[0], views=RECIPE).set_classes(NAMES)
    for i in range(3):
        answers = classifier.compare(image(i), methods)
        assert {name: answers[name].confidence for name in METHODS} == {name: found[i, name] for name in METHODS}
        assert len({found[i, name] for name in METHODS}) == len(METHODS), "each says something of its own"
