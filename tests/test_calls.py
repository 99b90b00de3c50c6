"""The classifier as people of other libraries call it: candidate labels, batches, bad images, pickles, devices."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.models.tiny import tiny_backbone
from PIL import Image

import otpt
from otpt import Classifier, Failure, OtptError, Prediction, ViewRecipe
from otpt import classifier as module
from otpt.data import as_dataset
from otpt.evaluation import Evaluation, evaluate
from otpt.methods import DEFAULT_METHOD, get_method
from otpt.prompts.learned import CoopContext, write_learned
from otpt.report import open_results

NAMES = ["cat", "dog", "red panda", "sea"]
RECIPE = ViewRecipe(n_views=12)


def image(seed: int = 1) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((48, 40), Image.Resampling.BICUBIC)


@cache
def shared() -> Classifier:
    return Classifier(tiny_backbone(), views=RECIPE).set_classes(NAMES)


def fresh(method: str = DEFAULT_METHOD, **options: Any) -> Classifier:
    return Classifier(shared().backbone, method, views=RECIPE, **options)


class SimpleDataset(list[dict[str, Any]]):
    """Rows with an image and a label, and the names of the classes."""

    classes = ("cat", "dog")


def same(one: Prediction, other: Prediction) -> bool:
    return one.class_names == other.class_names and np.allclose(
        one.probabilities, other.probabilities, rtol=0, atol=1e-6
    )


def test_a_call_predicts_one_image_or_many() -> None:
    clf = shared()
    assert same(clf(image()), clf.predict(image()))
    batch = torch.stack([torch.from_numpy(np.array(image(seed))).movedim(2, 0) for seed in (1, 2)])
    for many in ([image(1), image(2)], (image(s) for s in (1, 2)), batch, batch / 255, batch.numpy()):
        found = clf(many)
        assert len(found) == 2
        assert same(found[0], clf.predict(image(1)))
        assert same(found[1], clf.predict(image(2)))
    buffer = io.BytesIO()
    image().save(buffer, "PNG")
    assert same(clf(buffer), clf.predict(image()))


def test_candidate_labels_are_the_classes_of_one_call() -> None:
    clf = fresh()
    expected = fresh().set_classes(["boat", "tree", "cup"]).predict(image())
    assert same(clf(image(), candidate_labels=["boat", "tree", "cup"]), expected)
    assert same(clf(image(), "boat, tree, cup"), expected)
    with pytest.raises(OtptError, match="No classes are set"):
        clf(image())
    clf.set_classes(NAMES)
    clf(image(), ["boat", "tree"])
    assert same(clf(image()), shared().predict(image())), "the classes that are set stay"
    worded = clf(image(), ["boat", "tree", "cup"], hypothesis_template="an example of a {}.")
    assert same(worded, fresh().set_classes(["boat", "tree", "cup"], "an example of a").predict(image()))
    with pytest.raises(OtptError, match="needs candidate_labels"):
        clf(image(), hypothesis_template="a {}")
    with pytest.raises(OtptError, match="occurs twice"):
        clf(image(), ["boat", "boat"])


def test_a_prediction_reads_like_the_list_of_a_pipeline() -> None:
    found = shared()(image())
    assert [each["label"] for each in found] == [label for label, _ in found.top(99)]
    scores = [each["score"] for each in found]
    assert scores == sorted(scores, reverse=True)
    assert found[0] == {"score": found.confidence, "label": found.label}
    assert found[-1] == {"score": float(found.probabilities.min()), "label": NAMES[found.probabilities.argmin()]}
    assert len(found) == len(NAMES)
    assert found[:2] == list(found)[:2]


def test_text_features_of_label_lists_are_kept_and_the_oldest_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, ...]] = []
    real = module.Predictor

    def counted(backbone: Any, tasks: Any, *options: Any) -> Any:
        made.append(tasks[0].classes)
        return real(backbone, tasks, *options)

    monkeypatch.setattr(module, "Predictor", counted)
    clf = fresh("zero-shot")
    lists = [("cat", f"thing{'s' * i}") for i in range(module._MAX_PREDICTORS)]
    for labels in (*lists, *lists):
        clf(image(), labels)
    assert made == lists
    clf(image(), ("cat", "boat"))
    clf(image(), lists[1])
    clf(image(), lists[0])  # it was the one that was used the longest ago
    assert made == [*lists, ("cat", "boat"), lists[0]]


def test_a_bad_image_in_a_list(tmp_path: Path) -> None:
    images = [image(1), tmp_path / "missing.png", b"no image", image(2)]
    clf = shared()
    for call in (clf.predict, clf):
        with pytest.raises(OtptError, match=r"Cannot use image 2 of the list: There is no image at .*missing.png"):
            call(images)
        found = call(images, errors="return")
        assert same(found[0], clf.predict(image(1)))
        assert same(found[3], clf.predict(image(2)))
        assert [isinstance(each, Failure) for each in found] == [False, True, True, False]
        assert (found[1].image, found[1].position) == (str(tmp_path / "missing.png"), 1)
        assert found[2].image == "image 3"
        assert json.loads(json.dumps(found[2].to_dict())) == {
            "image": "image 3",
            "position": 2,
            "error": "Cannot use the given bytes as an image: it is not an image in a known format.",
        }
    with pytest.raises(OtptError, match="There is no image at"):
        clf(tmp_path / "missing.png")
    assert isinstance(clf(b"", errors="return"), Failure)
    with pytest.raises(OtptError, match="errors is 'ignore'; expected 'raise' or 'return'"):
        clf.predict(images, errors="ignore")


def test_streams_take_whatever_holds_images(tmp_path: Path) -> None:
    clf, path = shared(), tmp_path / "one.png"
    image(0).save(path)
    expected = [clf.predict(image(i)) for i in range(2)]

    class ByIndex:
        """As data sets of torch: no iterator, only items, which are (image, label) pairs."""

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            if index > 1:
                raise IndexError
            return image(index), 7

    loader = torch.utils.data.DataLoader([(np.array(image(i)).transpose(2, 0, 1), i) for i in range(2)], batch_size=2)
    rows = [{"image": image(i), "label": i} for i in range(2)]
    for images in ([path, image(1)], ByIndex(), loader, rows):
        assert all(same(a, b) for a, b in zip(clf.stream(images), expected, strict=True))
        assert all(same(a, b) for a, b in zip(clf.predict(images), expected, strict=True))
    assert [set(each) for each in clf.compare([path, image(1)], ["zero-shot", "tpt"])] == [{"zero-shot", "tpt"}] * 2

    endless = (image(i) for i in iter(int, 1))
    assert same(next(iter(clf.stream(endless))), expected[0]), "read lazily"
    for one in (str(path), path, image(), np.array(image()), path.read_bytes(), 3):
        with pytest.raises(OtptError):
            list(clf.stream(one))
    with pytest.raises(OtptError, match="colour"):
        clf.predict([{"colour": 1}])


def test_bad_options() -> None:
    for option, offending in (
        ("vews", "mean: views"),
        ("n_views", "mean: views"),
        ("colour", "'colour'"),
    ):
        with pytest.raises(OtptError, match=offending):
            otpt.load("pocket", **{option: 8})
    with pytest.raises(OtptError, match="'x'"):
        fresh(seed="x")
    with pytest.raises(OtptError, match=r"otpt\.load\('pocket'\)"):
        Classifier("pocket")  # type: ignore[arg-type]


def test_a_prediction_is_shown_in_one_line() -> None:
    found = shared().predict(image(), method="zero-shot")
    assert repr(found) == f"Prediction(label={found.label!r}, confidence={found.confidence:.2f}, method='zero-shot')"
    assert all(name in str(found) for name, _ in found.top(3))
    assert found._repr_html_().count("<tr>") == 4
    assert (found.set, found.abstained, found.rejected) == (None, None, None)
    assert fresh("zero-shot", reject=True).set_classes(NAMES).predict(image()).rejected in (True, False)


def test_a_prediction_is_ready_for_json() -> None:
    found = shared().predict(image())
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["probabilities"] == found.probabilities.tolist()
    assert plain["class_names"] == NAMES
    assert (plain["label"], plain["confidence"], plain["index"]) == (found.label, found.confidence, found.index)
    assert set(plain) - {"image"} == set(Prediction.__dataclass_fields__) - {"grouping", "image", "source", "threshold"}
    odd = Prediction("a", 0.6, 0, np.array([0.6, 0.4]), ("a", "b"), "m", (), {"x": float("nan"), "y": np.float32(2)})
    assert json.loads(json.dumps(odd.to_dict(), allow_nan=False))["extras"] == {"x": None, "y": 2.0}


def test_pickles_answer_alike() -> None:
    clf = shared()
    expected = clf.compare(image(), ["o-tpt", "zero-shot"])
    copy = pickle.loads(pickle.dumps(clf))
    assert copy.backbone.fingerprint == clf.backbone.fingerprint
    for name, found in copy.compare(image(), ["o-tpt", "zero-shot"]).items():
        assert same(found, expected[name])
    assert same(pickle.loads(pickle.dumps(expected["o-tpt"])), expected["o-tpt"])
    assert same(clf.compare(image(), ["o-tpt"])["o-tpt"], expected["o-tpt"]), "the original goes on"


def test_what_notebooks_show(tmp_path: Path) -> None:
    assert "tiny-vit" in shared()._repr_html_()
    rows = [{"image": image(i), "label": i % 2} for i in range(4)]
    data = as_dataset(SimpleDataset(rows))
    result = evaluate(data, shared().backbone, Evaluation(methods=["zero-shot"], views=4), out=tmp_path / "run")
    results = open_results([result.run.folder])
    for shown in (repr(result), result._repr_html_(), results._repr_html_(), result.run._repr_html_()):
        assert "zero-shot" in shown
    assert "debiased ECE %" in result._repr_html_()
    assert f"{100 * result.frame['accuracy'][0]:.2f}" in repr(result)


def test_moving_to_a_device() -> None:
    clf = fresh().set_classes(NAMES)
    assert clf.to("cpu") is clf
    assert clf.backbone is shared().backbone, "it is there already"
    if not torch.cuda.is_available():
        with pytest.raises(OtptError, match="Device 'cuda' is not available"):
            clf.to("cuda")
    with pytest.raises(OtptError, match="is not available"):
        clf.to("gpu")
    with pytest.raises(OtptError, match="Device '0' is not available"):
        clf.to(0)  # type: ignore[arg-type]
    assert clf.to(torch.device("cpu")) is clf
    assert same(clf(image()), shared()(image())), "and goes on"


def unit_features(texts: list[str]) -> torch.Tensor:
    """Of whole sentences, by the model itself."""
    text = shared().backbone.text
    ids = text.tokenize(texts)
    return torch.nn.functional.normalize(text.encode_embeddings(ids, text.embed(ids)), dim=-1)


def zero_shot(features: torch.Tensor) -> np.ndarray:
    """softmax(scale · v·e) of the clean view."""
    clean = shared().encode_views(image())[0]
    return (shared().backbone.logit_scale * features @ clean).double().softmax(dim=0).numpy()


def test_templates_descriptions_and_text_features_are_averaged_as_literally() -> None:
    templates = ["a photo of a {}.", "a drawing of the {}.", "{} texture"]
    each = torch.stack([unit_features([t.format(name) for name in NAMES]) for t in templates])
    expected = torch.nn.functional.normalize(each.mean(dim=0), dim=-1)
    clf = fresh("zero-shot").set_classes(NAMES, templates=templates)
    assert clf(image()).probabilities == pytest.approx(zero_shot(expected), abs=1e-4)
    given = fresh("zero-shot").set_classes(NAMES, text_features=3 * expected)
    assert given(image()).probabilities == pytest.approx(zero_shot(expected), abs=1e-4)

    functions = [lambda c, t=t: t.format(c) for t in templates]  # as open_clip writes its templates
    assert same(fresh("zero-shot").set_classes(NAMES, templates=functions)(image()), clf(image()))
    with pytest.raises(OtptError, match=r"\(32, 4\)"):
        fresh("zero-shot").set_classes(NAMES[:4], text_features=expected.T)

    texts = {
        "cat": ["a furry animal.", "a pet that purrs."],
        "dog": "a pet that barks.",
        "sea": ["a lot of water."] * 3,
    }
    means = [unit_features([own] if isinstance(own, str) else own).mean(dim=0) for own in texts.values()]
    described = fresh("zero-shot").set_classes(texts)
    assert described.class_names == ("cat", "dog", "sea")
    expected = torch.nn.functional.normalize(torch.stack(means), dim=-1)
    assert described(image()).probabilities == pytest.approx(zero_shot(expected), abs=1e-4)


@pytest.mark.parametrize("method", ["zero", "mean-feature", "tps", "tda", "zero-shot+dac", "mta"])
def test_methods_without_a_context_take_any_texts(method: str) -> None:
    features = unit_features([f"a photo of a {name}." for name in NAMES])
    words = fresh(method).set_classes(NAMES)(image())
    for options in ({"text_features": features}, {"templates": ["a photo of a {}."]}):
        found = fresh(method).set_classes(NAMES, **options)(image())
        assert found.probabilities == pytest.approx(words.probabilities, abs=1e-3)


def test_methods_that_need_words_refuse_in_a_sentence() -> None:
    features = torch.randn(len(NAMES), 32)
    for method, options in (("o-tpt", {"templates": ["a {}"]}), ("tpt+zs", {"text_features": features})):
        with pytest.raises(OtptError, match=r"tunes a context, but the classes were set with t.*'zero-shot'"):
            fresh(method).set_classes(NAMES, **options)
    clf = fresh("zero-shot").set_classes({"cat": "a cat.", "dog": "a dog."})
    with pytest.raises(OtptError, match="set with descriptions, which have none"):
        clf.compare(image(), ["zero-shot", "o-tpt"])
    with pytest.raises(OtptError, match="starts from 'templates-7'"):
        fresh("zero-shot+templates-7").set_classes(NAMES, text_features=features)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: clf.set_classes(NAMES, text_features=features[:2]), r"\(2, 32\)"),
        (
            lambda: clf.set_classes(NAMES, text_features=torch.randn(4, 9)),
            r"\(4, 9\)",
        ),
        (lambda: clf.set_classes(NAMES, text_features=torch.full((4, 32), torch.nan)), "expected finite floats"),
        (lambda: clf.set_classes(NAMES, text_features=torch.zeros(4, 32)), "are all zero"),
        (lambda: clf.set_classes({"cat": [], "dog": "a dog."}), "Class 1 of 2 has no description"),
        (
            lambda: clf.set_classes(NAMES, "a photo of a", templates=["a {}"]),
            "prompt and templates cannot be combined",
        ),
        (lambda: clf.set_classes(NAMES, templates=["a thing"]), "exactly once"),
        (lambda: clf.set_classes("cat"), r"names is 'cat'; expected a list .*pass \['cat'\]"),
    ]
    for call, words in wrong:
        with pytest.raises(OtptError, match=words):
            call()
    assert clf.class_names == ("cat", "dog"), "a refused class list changes nothing"


def test_learned_contexts_and_attributes_come_from_files_as_on_the_command_line(tmp_path: Path) -> None:
    context = CoopContext(torch.randn(4, 64, generator=torch.Generator().manual_seed(0)))
    path = tmp_path / "coop.safetensors"
    path.write_bytes(write_learned(path, context))
    expected = fresh(get_method("coop+o-tpt").override({"context": context})).set_classes(NAMES)(image())
    for source in (path, str(path), f"coop={path}"):
        assert same(fresh(get_method("coop+o-tpt").override({"context": source})).set_classes(NAMES)(image()), expected)
    assert same(fresh(f"coop[context={path}]+o-tpt").set_classes(NAMES)(image()), expected)
    with pytest.raises(OtptError, match="context=FILE"):
        fresh("coop+o-tpt").set_classes(NAMES)
    attributes = {name: ["small", "large"] for name in NAMES}
    file = tmp_path / "attributes.json"
    file.write_text(json.dumps(attributes), encoding="utf-8")
    tca = get_method("tca")
    one, two = (fresh(tca.override({"attributes": given})).set_classes(NAMES)(image()) for given in (attributes, file))
    assert same(one, two)


@pytest.mark.parametrize("name", ["tda", "label-prior"])
def test_all_calls_continue_one_stream(name: str) -> None:
    """A stream method has one state per classifier, for ``predict``, ``stream`` and ``compare`` alike."""
    images = [np.random.default_rng(i).integers(0, 256, (64, 64, 3), dtype=np.uint8) for i in range(4)]
    expected = [p.probabilities for p in otpt.load("pocket", name, views=4, classes=NAMES).stream(images)]
    classifier = otpt.load("pocket", name, views=4, classes=NAMES)
    found = [classifier.predict(images[0]), *classifier.stream(images[1:2])]
    found += [classifier.compare(images[2], [name])[name], classifier.predict(images[3], method=name)]
    for prediction, probabilities in zip(found, expected, strict=True):
        assert isinstance(prediction, otpt.Prediction)
        np.testing.assert_allclose(prediction.probabilities, probabilities, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"methods": ["tpt", "zero-shot"]}, "compare"),
        ({"dataset": "dtdd"}, "dtdd"),
        ({"method": "templates-7", "prompt": "a drawing of a"}, "a drawing of a"),
        ({"multi_label": True, "views": 8}, "views"),
        ({"multi_label": True, "official_precision": True}, "official_precision"),
    ],
)
def test_fields_without_an_effect_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(OtptError, match=named):
        Classifier(tiny_backbone(), classes=NAMES, **fields)


def test_every_compared_method_must_fit_the_examples() -> None:
    examples = {name: [image(i), image(i + 5)] for i, name in enumerate(NAMES[:2])}
    classifier = Classifier(tiny_backbone(), "prototypes", views=RECIPE).set_classes(examples=examples)
    with pytest.raises(OtptError, match="zero-shot"):
        classifier.compare(image(), ["prototypes", "zero-shot"])


def test_a_list_of_predictions_stays_one() -> None:
    predictions = fresh("zero-shot").set_classes(NAMES).predict([image(1), image(2)])
    assert isinstance(predictions + predictions[:1], otpt.Predictions)
    assert predictions[0].label == predictions.labels[0]
