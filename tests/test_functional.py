"""Methods on plain tensors, against the literal ways: loops, torch's AdamW, explicit reflectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from oracles.methods.accuracy import by_entropy, literal_mean, literal_mta, literal_shift, literal_zero
from oracles.methods.householder import literal_householder
from oracles.models.tiny import tiny_backbone
from torch import Tensor
from torch.nn.functional import normalize

from otpt import Classifier, Method, OtptError, ViewRecipe, functional
from otpt.methods import Protocol, get_method, known_parts
from otpt.methods.few_shot import EXAMPLE_INITS
from otpt.methods.names import field_names, published_names
from otpt.methods.state import prompt_state
from otpt.registry import AGGREGATIONS, CALIBRATIONS

SCALE, VIEWS, CLASSES, WIDTH = 30.0, 20, 5, 12
GENERATOR = torch.Generator().manual_seed(3)
TEXTS = normalize(torch.randn(CLASSES, WIDTH, generator=GENERATOR, dtype=torch.float64), dim=-1)
IMAGES = normalize(
    TEXTS[[1, 3]][:, None] + 0.4 * torch.randn(2, VIEWS, WIDTH, generator=GENERATOR, dtype=torch.float64), dim=-1
)
WEIGHTS = torch.randn(CLASSES, WIDTH, 6, generator=GENERATOR, dtype=torch.float64)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
CONTEXT = torch.randn(2, 3, generator=GENERATOR, dtype=torch.float64)


def encoder(context: Tensor) -> Tensor:
    """Any differentiable function of the context; not of norm one, which is ours to do."""
    return TEXTS + 0.3 * torch.tanh(WEIGHTS @ context.flatten())


def logits(image: Tensor, texts: Tensor = TEXTS) -> Tensor:
    return SCALE * image @ texts.T


def test_prediction_by_methods_without_a_context() -> None:
    found = functional.predict(IMAGES, TEXTS, method="zero-shot", logit_scale=SCALE)
    assert found.shape == (2, CLASSES)
    for image, row in zip(IMAGES, found, strict=True):
        torch.testing.assert_close(row, logits(image)[0].softmax(0), rtol=0, atol=1e-12)
        one = functional.predict(image, 7 * TEXTS, method="zero-shot", logit_scale=SCALE)
        torch.testing.assert_close(one, row, rtol=0, atol=1e-12)
        own = logits(image)
        for method, expected in {
            "zero": torch.tensor(literal_zero(own, SCALE), dtype=torch.float64),
            "mta": literal_mta(image, own, TEXTS, SCALE),
            "mean-feature": literal_mean("mean-feature", image, own, own, TEXTS, SCALE),
            "mean-probability": literal_mean("mean-probability", image, own, own, TEXTS, SCALE),
            "tps": logits(image, literal_shift(image, TEXTS, SCALE, 5e-3, "own"))[0].softmax(0),
        }.items():
            found_one = functional.predict(image[None], TEXTS, method=method, logit_scale=SCALE)[0]
            torch.testing.assert_close(found_one, torch.as_tensor(expected).double(), rtol=0, atol=1e-6, msg=method)


def literal_tuned(image: Tensor, *, weight: float, rate: float = 5e-3) -> Tensor:
    """One step of torch's AdamW on the entropy of the mean of the confident views, and the explicit reflectors."""
    context = CONTEXT.clone().requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=rate, weight_decay=0.01)
    texts = normalize(encoder(context), dim=-1)
    rows = logits(image, texts)
    chosen = by_entropy(rows.detach())[: int(VIEWS * 0.1)]
    mean = rows[chosen].softmax(dim=1).mean(dim=0)
    loss = -(mean * mean.log()).sum() + weight * literal_householder(texts)
    loss.backward()
    optimiser.step()
    return context.detach()


@pytest.mark.parametrize(("method", "weight"), [("tpt", 0.0), ("o-tpt", 18.0)])
def test_tuning_of_a_context_through_a_function(method: str, weight: float) -> None:
    tuned = functional.tune(IMAGES, encoder, CONTEXT, method=method, logit_scale=SCALE)
    predicted = functional.predict(IMAGES, encoder, method=method, context=CONTEXT, logit_scale=SCALE)
    assert not tuned.skipped.any()
    for i, image in enumerate(IMAGES):
        context = literal_tuned(image, weight=weight)
        texts = normalize(encoder(context), dim=-1)
        torch.testing.assert_close(tuned.contexts[i], context, rtol=0, atol=1e-9)
        assert tuned.text_features is not None
        torch.testing.assert_close(tuned.text_features[i], texts, rtol=0, atol=1e-9)
        torch.testing.assert_close(tuned.logits[i], logits(image, texts)[0], rtol=0, atol=1e-7)
        torch.testing.assert_close(predicted[i], logits(image, texts)[0].softmax(0), rtol=0, atol=1e-9)


def test_calibration_and_aggregation_alone() -> None:
    own, before = logits(IMAGES[0]), 0.5 * logits(IMAGES[0]) + 1
    found = functional.calibrate(own[0], before[0], method="sals")
    low, high = float(before[0].min()), float(before[0].max())
    scaled = (own[0] - own[0].min()) / (own[0].max() - own[0].min()) * (high - low) + low
    torch.testing.assert_close(found, scaled)
    warm = functional.calibrate(own, before, method="temperature", settings={"temperature": 2.0})
    torch.testing.assert_close(warm, own / 2)
    mean = functional.aggregate(own, method="mean-probability")
    torch.testing.assert_close(mean, own.softmax(dim=1).mean(dim=0))
    votes = functional.aggregate(own, method="zero", logit_scale=SCALE, settings={"vote_ratio": 0.5})
    assert votes.tolist() == pytest.approx(literal_zero(own, SCALE, ratio=0.5))
    direction = functional.aggregate(
        own, method="mean-feature", view_features=IMAGES[0], text_features=TEXTS, logit_scale=SCALE
    )
    torch.testing.assert_close(direction, literal_mean("mean-feature", IMAGES[0], own, own, TEXTS, SCALE).double())


def test_it_gives_the_very_numbers_of_the_classifier() -> None:
    names = ["cat", "dog", "red panda"]
    backbone = tiny_backbone(precision="float64")
    clf = Classifier(backbone, views=ViewRecipe(n_views=16)).set_classes(names)
    views = normalize(torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=-1)
    text = prompt_state(backbone, names)

    def through_the_tower(context: Tensor) -> Tensor:
        return text.encoder._features(0, context[None])[0]  # with its graph; all classes are one chunk

    for method in ("o-tpt", "tpt+sals", "zero-shot"):
        expected = [each[method].probabilities for each in clf.classify_features(views, [method])]
        found = functional.predict(
            views, through_the_tower, method=method, context=text.init, logit_scale=backbone.logit_scale
        )
        for row, other in zip(found, expected, strict=True):
            assert row.numpy() == pytest.approx(other, abs=1e-9)


def test_a_classifier_takes_the_same_arrays() -> None:
    clf = Classifier(tiny_backbone(), views=ViewRecipe(n_views=8)).set_classes(["cat", "dog", "red panda"])
    views = normalize(torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(0)), dim=-1)
    for method in ("zero-shot", "o-tpt"):
        expected = [each[method].probabilities for each in clf.classify_features(views, [method])]
        for same in (
            views.double(),
            views.numpy(),
            views.tolist(),
            views.double().numpy(),
            views.clone().requires_grad_(),
        ):
            found = [each[method].probabilities for each in clf.classify_features(same, [method])]
            assert np.array_equal(found, expected)
    for wrong in (views.long(), views.to_sparse(), views[:, :0], views[0], None, "features"):
        with pytest.raises(OtptError):
            clf.classify_features(wrong, ["zero-shot"])  # type: ignore[arg-type]
    for number in (0.0, math.nan, math.inf):
        for view in (0, 3):
            without_direction = views.clone()
            without_direction[1, view] = number
            with pytest.raises(OtptError, match="1 images whose features are NaN or zero, such as row 1"):
                clf.classify_features(without_direction, ["zero-shot"])


def test_methods_as_objects() -> None:
    rows = logits(IMAGES)
    arrays: dict[str, Any] = {"view_features": IMAGES, "text_features": TEXTS}
    for name in ("mta", "mean-feature", "zero"):
        expected = functional.aggregate(rows, method=name, **arrays)
        assert torch.equal(functional.aggregate(rows, method=get_method(name), **arrays), expected)
    calibrated = functional.calibrate(rows, rows / 2, method=get_method("sals"))
    assert torch.equal(calibrated, functional.calibrate(rows, rows / 2, method="sals"))


@pytest.mark.parametrize("method", ["tpt", "o-tpt", "rlcf", "his-tpt", "gs-bias"])
def test_gradients_in_inference_mode(method: str) -> None:
    def found() -> Tensor:
        inputs = (encoder, CONTEXT) if get_method(method).needs_context else (TEXTS, None)
        return functional.predict(IMAGES, inputs[0], context=inputs[1], method=method, logit_scale=SCALE)

    expected = found()
    with torch.inference_mode():
        assert torch.equal(found(), expected)


@pytest.mark.parametrize("own", FLOATS)
def test_an_encoder_with_weights_of_one_type(own: torch.dtype) -> None:
    """Whatever the type of its weights, an encoder gives nearly the same results for views and contexts of any type."""
    texts, weights = TEXTS.to(own), WEIGHTS.to(own)

    def encode(context: Tensor) -> Tensor:
        return texts + 0.3 * torch.tanh(torch.mv(weights.flatten(0, 1), context.flatten()).view_as(texts))

    expected = functional.predict(IMAGES, encoder, context=CONTEXT, method="tpt", logit_scale=SCALE)
    for views in FLOATS:
        for given in FLOATS:
            arguments = (IMAGES.to(views), encode, CONTEXT.to(given))
            tuned = functional.tune(*arguments, method="tpt", logit_scale=SCALE)
            torch.testing.assert_close(tuned.logits.double().softmax(dim=1), expected, rtol=0, atol=0.1)


def test_what_is_wrong_is_said() -> None:
    rows = logits(IMAGES)
    cases = [
        (lambda: functional.predict(IMAGES, TEXTS, method="o-tpt"), "tunes a context, but text_features is an array"),
        (lambda: functional.predict(2 * IMAGES, TEXTS), "not have unit norm"),
        (lambda: functional.predict(IMAGES, TEXTS[:, :3]), r"expected \(C, D\), with D = 12"),
        (lambda: functional.predict(IMAGES[0, 0], TEXTS), r"expected \(N, V, D\)"),
        (lambda: functional.predict(IMAGES.long(), TEXTS), "floating-point"),
        (lambda: functional.predict(IMAGES, TEXTS, method="gda"), "examples="),
        (lambda: functional.predict(IMAGES, TEXTS, method="coop"), "makes its own texts"),
        (lambda: functional.predict(IMAGES, encoder, method="tpt"), "given with no context"),
        (lambda: functional.predict(IMAGES, TEXTS, method="promptsmooth"), "needs pixels"),
        (lambda: functional.tune(IMAGES, encoder, CONTEXT, method="zero"), "does not tune a context"),
        (lambda: functional.calibrate(TEXTS, TEXTS[0]), "expected equal shapes"),
        (lambda: functional.calibrate(TEXTS, TEXTS, method="salt"), "'salt'"),
        (lambda: functional.aggregate(TEXTS, method="mta"), "needs view_features="),
        (lambda: functional.aggregate(rows, method="mta", view_features=IMAGES), "needs text_features="),
        (lambda: functional.aggregate(rows, method="o-tpt+mta"), "'o-tpt\\+mta'"),
        (lambda: functional.predict(IMAGES, TEXTS, context=CONTEXT), "context="),
        (lambda: functional.predict(IMAGES, TEXTS, protocol={}), "protocol is {}"),  # type: ignore[arg-type]
        (lambda: functional.predict(IMAGES, lambda _: TEXTS, context=CONTEXT, method="tpt"), "no gradient"),
        (lambda: functional.aggregate(TEXTS[0]), r"expected \(N, V, C\)"),
    ]
    for call, words in cases:
        with pytest.raises(OtptError, match=words):
            call()
    assert math.isclose(float(functional.predict(IMAGES, TEXTS)[0].sum()), 1)


# ---- hostile arguments ----------------------------------------------------------------------------------------------

JOINED = [f"tpt+{name}" for name, part in known_parts().items() if part.axis in ("objective", "calibrate", "gate")]
METHODS = list(dict.fromkeys([*published_names(), *field_names(), *known_parts(), *JOINED]))
FEW = 4  # classes of the fuzz test
LABELS = torch.arange(3 * FEW) % FEW
FUZZ_TEXTS = TEXTS[:FEW]
FUZZ_IMAGES = normalize(IMAGES[:, :8] + 0.0, dim=-1)
EXAMPLES = normalize(
    FUZZ_TEXTS[LABELS] + 0.3 * torch.randn(len(LABELS), WIDTH, generator=GENERATOR, dtype=torch.float64), dim=-1
)


class EncoderError(Exception):
    """An error of a user's encoder, which passes through."""


def few_texts(context: Tensor) -> Tensor:
    if context.shape != CONTEXT.shape:
        raise EncoderError
    return FUZZ_TEXTS.to(context) + 0.3 * torch.tanh(WEIGHTS[:FEW].to(context) @ context.flatten())


def only_float64(context: Tensor) -> Tensor:
    if context.dtype != torch.float64:
        raise RuntimeError("expected m1 and m2 to have the same dtype")
    return few_texts(context)


def failing(context: Tensor) -> Tensor:
    raise EncoderError


def mixed(random: Random, tensor: Tensor) -> Any:
    """The same numbers in another type and kind of array."""
    converted = tensor.to(random.choice(FLOATS))
    kinds = [
        converted,
        tensor.numpy(),
        converted.float().numpy(),
        converted.tolist(),
        converted.clone().requires_grad_(),
    ]
    return random.choice(kinds)


def hostile_array(random: Random, values: Any) -> Any:
    """An array that is unusual or wrong: its shape, its type, its numbers or its memory."""
    values = FUZZ_TEXTS if callable(values) else values
    tensor = values.detach() if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
    with_nan, read_only = tensor.clone(), tensor.double().numpy().copy()
    with_nan.flatten()[0] = random.choice([math.nan, math.inf, -math.inf, 1e30])
    read_only.flags.writeable = False
    choices: list[Callable[[], Any]] = [
        lambda: tensor[..., :-1],
        lambda: tensor[:-1],
        lambda: tensor[:0],
        lambda: tensor[..., :0],
        lambda: tensor[0],
        lambda: tensor[None],
        lambda: tensor[None, None],
        tensor.flatten,
        lambda: tensor.mT if tensor.ndim > 1 else tensor,
        lambda: torch.cat([tensor, tensor]),
        lambda: torch.cat([tensor, tensor], dim=-1),
        lambda: tensor.new_zeros(()),
        lambda: torch.zeros_like(tensor),
        lambda: tensor * 1e20,
        lambda: with_nan,
        tensor.long,
        tensor.bool,
        lambda: tensor.to(torch.complex64),
        lambda: tensor.float().to(torch.float8_e4m3fn),
        tensor.to_sparse,
        lambda: tensor.to("meta"),
        lambda: torch.nested.nested_tensor([tensor, tensor], layout=torch.jagged),
        lambda: tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor,
        lambda: read_only,
        lambda: read_only[..., ::-1],
        lambda: read_only.astype(object),
        lambda: read_only.astype(str),
        lambda: read_only.astype(">f8"),
        lambda: read_only.astype(np.longdouble),
        lambda: [[1.0, 2.0], [3.0]],
        lambda: [list(tensor), "x"],
        lambda: [tensor, tensor],
        lambda: None,
        lambda: "features",
        lambda: {"features": tensor},
        lambda: {1.0, 2.0},
        object,
        lambda: 1.0,
        lambda: failing,
    ]
    return random.choice(choices)()


def hostile_encoder(random: Random) -> Any:
    weights = torch.nn.Parameter(WEIGHTS[:FEW])
    calls: list[int] = []

    def growing(context: Tensor) -> Tensor:
        calls.append(0)
        return few_texts(context)[: 2 + len(calls)]

    return random.choice(
        [
            lambda context: few_texts(context).detach(),
            lambda context: FUZZ_TEXTS,
            lambda context: weights.sum(dim=-1),
            lambda context: few_texts(context)[:, :-1],
            lambda context: few_texts(context)[:1],
            lambda context: few_texts(context)[0],
            lambda context: few_texts(context)[None],
            lambda context: few_texts(context).detach().numpy(),
            lambda context: few_texts(context) * math.nan,
            lambda context: (few_texts(context) - few_texts(context)) / 0,
            lambda context: few_texts(context).long(),
            lambda context: few_texts(context).to(torch.complex64),
            lambda context: few_texts(context).to_sparse(),
            lambda context: few_texts(context).bfloat16(),
            lambda context: few_texts(context.half()),
            lambda context: few_texts(context).to("meta"),
            torch.inference_mode()(few_texts),
            only_float64,
            lambda context: None,
            growing,
            failing,
            torch.nn.Identity(),
        ]
    )


def hostile_value(random: Random, name: str, value: Any) -> Any:
    """A value for an argument that is unusual or wrong."""
    by_name: dict[str, list[Any]] = {
        "method": [None, "", "+", "[", "zero[", "tpt+", "nope", "nope.toml", 3, ["tpt"], {}, Method("mine"), "O-TPT"],
        "logit_scale": ["x", None, math.nan, math.inf, 0, -1.0, True, 10**400, 1e300, 1e-300, 30, np.float32(30), 1j],
        "settings": ["x", [], {3: 1}, {"nope": 1}, {"temperature": math.nan}, {"mean-fraction": "x"}, {"steps": 2}],
        "protocol": [{}, "x", Protocol(official_precision=True), Protocol(family="shift"), Protocol(dataset="dtd")],
        "tower": [None, [], "resnet", "other"],
        "family": [None, [], "shift", "other", np.zeros(3)],
    }
    by_name["logit_bias"] = [*by_name["logit_scale"], torch.tensor(1.0), np.zeros(3)]
    if name == "examples":
        features, labels = value if isinstance(value, tuple) else (EXAMPLES, LABELS)
        wrong = [labels.float(), labels - 1, labels[:-1], labels[:, None], ["cat"] * len(labels), labels.bool(), None]
        pairs = [
            (hostile_array(random, features), labels),
            (features, random.choice(wrong)),
            (features, labels.to("meta")),
        ]
        return random.choice([*pairs, (features,), {"features": features}, "x", ([], []), (features, labels.numpy())])
    if name == "encoder" or (name == "text_features" and callable(value) and random.random() < 0.8):
        return random.choice([hostile_encoder(random), hostile_array(random, FUZZ_TEXTS)])
    if name == "method" and random.random() < 0.3:
        return get_method(random.choice(["zero-shot", "o-tpt", "mta", "sals", "e-cots", "tpt+mta"]))
    return random.choice(by_name[name]) if name in by_name else hostile_array(random, value)


def method_if_valid(name: str) -> Method:
    try:
        return get_method(name)
    except OtptError:
        return get_method("zero-shot")


def valid_arguments(random: Random, name: str, method: str) -> dict[str, Any]:
    """Arguments that a function of ``otpt.functional`` accepts for most methods, in a mixture of types."""
    context, images = mixed(random, CONTEXT), FUZZ_IMAGES[:, : random.choice([1, 2, 8, 8])]
    if name == "predict":
        arguments = {"view_features": mixed(random, images), "text_features": mixed(random, FUZZ_TEXTS)}
        if method_if_valid(method).needs_context:
            arguments |= {"text_features": few_texts, "context": context}
        if method_if_valid(method).init in EXAMPLE_INITS:
            arguments |= {"examples": (mixed(random, EXAMPLES), LABELS)}
        return {**arguments, "logit_scale": SCALE}
    if name == "tune":
        return {"view_features": mixed(random, images), "encoder": few_texts, "context": context}
    own = {"logits": mixed(random, SCALE * images @ FUZZ_TEXTS.T)}
    texts = {"text_features": mixed(random, FUZZ_TEXTS)}
    if name == "aggregate":
        return {**own, **texts, "view_features": mixed(random, images), "logit_scale": SCALE}
    zero_shot = mixed(random, 10 * images @ FUZZ_TEXTS.T)
    return {**own, **texts, "zero_shot": zero_shot, "adapted_text_features": mixed(random, FUZZ_TEXTS + 0.1)}


HOSTILE = {
    "predict": (
        "view_features",
        "text_features",
        "context",
        "examples",
        "logit_scale",
        "logit_bias",
        "protocol",
        "tower",
    ),
    "tune": ("view_features", "encoder", "context", "logit_scale", "logit_bias", "family"),
    "aggregate": ("logits", "zero_shot", "view_features", "text_features", "logit_scale", "settings"),
    "calibrate": ("logits", "zero_shot", "text_features", "adapted_text_features", "settings"),
}


def check_result(name: str, result: Any) -> None:
    if name == "tune":
        assert bool(result.logits.isfinite().all())
        assert bool(result.contexts.isfinite().all())
        return
    probabilities = result.softmax(dim=-1) if name == "calibrate" else result
    assert bool((probabilities >= 0).all())
    ones = torch.ones_like(probabilities[..., 0])
    torch.testing.assert_close(probabilities.sum(dim=-1), ones, rtol=0, atol=1e-3)


def fuzz_calls() -> Iterator[tuple[str, str]]:
    """Each function of the module with each method or part that it may take."""
    yield from (("predict", method) for method in METHODS)
    yield from (("tune", method) for method in METHODS)
    yield from (("aggregate", part) for part in [*AGGREGATIONS, "confident-half", "e-cots"])
    yield from (("calibrate", part) for part in [*CALIBRATIONS, "ts"])


@pytest.mark.filterwarnings("ignore")  # of torch, about kinds of tensors
@pytest.mark.parametrize("seed", range(3))
def test_hostile_arguments_raise_only_our_errors(seed: int) -> None:
    random = Random(seed)
    assert {name for name, _ in fuzz_calls()} == set(HOSTILE) == set(functional.__all__) - {"Encoder"}
    for name, method in fuzz_calls():
        for _ in range(2 if name in ("predict", "tune") else 25):
            arguments = {"method": method, **valid_arguments(random, name, method)}
            for argument in random.sample([*HOSTILE[name], "method"], random.choice([0, 1, 1, 1, 2])):
                arguments[argument] = hostile_value(random, argument, arguments.get(argument, FUZZ_TEXTS))
            try:
                result = getattr(functional, name)(**arguments)
            except (OtptError, EncoderError):
                continue
            except Exception as error:
                error.add_note(f"{name}({arguments})")
                raise
            check_result(name, result)
