"""Task, Protocol, Decision and Evaluation: JSON and back, copies, other spellings, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.fields import plain_fields
from oracles.models.tiny import tiny_backbone

from otpt import Method, OtptError, Prompt, ViewRecipe
from otpt.calibration import Calibrated, Calibration, fit_calibration
from otpt.decision import Decision
from otpt.evaluation import Evaluation
from otpt.groups import Groups
from otpt.methods import Protocol, Task, calibration_facts, get_method, known_parts
from otpt.prompts import Descriptions, Templates, TextFeatures
from otpt.prompts.learned import CoopContext
from otpt.records import Frozen
from otpt.registry import INITS, OBJECTIVES, SYSTEMS

known_parts()  # imports the plugins
RECORDS: tuple[type[Frozen], ...] = (Task, Protocol, Decision, Evaluation)
PREPARATIONS: list[type[Frozen]] = [*INITS.values(), *SYSTEMS.values()]


@cache
def calibration(method: str = "tpt") -> Calibration:
    """A calibration in memory."""
    draw = np.random.default_rng(0)
    protocol = Protocol(method=method)
    facts = calibration_facts(tiny_backbone(), Task(classes=["cat", "dog"]), protocol, protocol.methods[0])
    return fit_calibration(draw.dirichlet([1.0, 1.0], size=60), draw.integers(0, 2, 60), facts)


# ---- generated records ----------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(categories=["Lu", "Ll", "Nd"]), min_size=1, max_size=6)
WORDS = st.lists(NAMES, min_size=1, max_size=4).map(" ".join)
FILES = st.lists(NAMES.map("{}.png".format), min_size=1, max_size=3)
TEMPLATES = st.builds(Templates, NAMES, st.lists(WORDS.map("{} {{}}.".format), min_size=1, max_size=3))
PROMPTS = st.builds(Prompt, WORDS, st.none() | st.integers(1, 9))
FRACTIONS = st.floats(0, 1, exclude_min=True, exclude_max=True)
COVERAGES = st.floats(0.1, 0.9)
COUNTS = st.integers(1, 10**12)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    classes = draw(st.lists(NAMES, min_size=2, max_size=5, unique_by=str.casefold))
    described = st.lists(st.lists(WORDS, min_size=1), min_size=len(classes), max_size=len(classes))
    texts = draw(PROMPTS | TEMPLATES | described.map(Descriptions))
    of_kinds = ("multi_label", "allow_duplicates")
    plain = draw(st.fixed_dictionaries(plain_fields(Task, without=of_kinds)))
    fields: dict[str, Any] = {"classes": classes, "texts": texts, **plain}
    kind = draw(st.sampled_from(["plain", "unset", "several", "duplicates", "groups", "by examples", "examples too"]))
    if kind == "unset":
        del fields["classes"]
    elif kind == "several":
        fields["multi_label"] = True
    elif kind == "duplicates":
        fields |= {"classes": [*classes[1:], classes[-1]], "allow_duplicates": True}
    elif kind == "groups":
        members = draw(st.lists(st.sampled_from(classes), min_size=1, unique=True))
        fields["groups"] = {"a group": {"of them": members[:1], "rest": members}}
    elif kind == "by examples":
        fields = {**plain, "examples": {name: draw(FILES) for name in classes}}
    elif kind == "examples too":
        some = draw(st.lists(st.sampled_from(classes), min_size=1, unique=True))
        fields["examples"] = {name: draw(FILES) for name in some}
    if kind in ("several", "by examples", "examples too") or not isinstance(texts, Prompt):
        fields.pop("all_tokens", None)  # there is no context to tune
    return Task(**fields)


@st.composite
def recipes(draw: st.DrawFn) -> ViewRecipe:
    scale, ratio = (tuple(sorted(draw(st.tuples(FRACTIONS, FRACTIONS)))) for _ in range(2))
    rounds = draw(st.lists(st.integers(2, 60), max_size=3, unique=True).map(sorted))
    views = draw(st.integers(61, 99))
    noise = 0.0 if rounds else draw(st.floats(0, 1))
    return ViewRecipe(views, draw(st.booleans()), scale, ratio, draw(st.floats(0, 1)), noise, tuple(rounds))


@st.composite
def methods(draw: st.DrawFn) -> list[str | Method]:
    """Names of parts, names with settings, methods with other numbers, and methods made of fields."""
    names = [name for name, part in known_parts().items() if not part.needs and part.axis in ("init", "adapt")]
    weights = st.dictionaries(st.sampled_from(sorted(OBJECTIVES)), st.floats(0, 10), min_size=1, max_size=3)
    made = st.builds(Method, NAMES.map("own {}".format), weights, steps=st.integers(1, 3), two_step=st.booleans())
    other = st.floats(0, 50).map(lambda weight: get_method("o-tpt").override({"lambda": weight}))
    named = st.sampled_from([*names, "O-TPT+sals", "coop[context=mine.safetensors]", "zero[vote-ratio=0.5]"])
    return draw(st.lists(named | made | other, max_size=3, unique_by=lambda one: get_method(one).name))


def protocols(**fixed: Any) -> st.SearchStrategy[Protocol]:
    views = st.one_of(
        st.just({}),
        st.fixed_dictionaries({"views": st.integers(1, 999) | recipes()}),
        st.fixed_dictionaries({"budget": COUNTS}),
    )
    fields = plain_fields(Protocol, without=("views", "budget"))
    fields |= {"methods": methods(), "dataset": st.sampled_from(["", "dtd"])}
    fields |= {name: st.just(value) for name, value in fixed.items()}
    return st.builds(lambda first, rest: Protocol(**first, **rest), views, st.fixed_dictionaries({}, optional=fields))


@st.composite
def decisions(draw: st.DrawFn, files: bool = True, **fixed: Any) -> Decision:
    of_kinds = ("coverage", "sets", "mondrian", "risk", "guarantee", "reject", "reject_threshold")
    fields: dict[str, Any] = {**draw(st.fixed_dictionaries(plain_fields(Decision, without=of_kinds))), **fixed}
    in_memory = st.builds(Calibrated, st.just(calibration()), coverage=st.none() | COVERAGES, risk=st.none())
    kind = draw(st.sampled_from(["none", "file", "object", "with its own coverage"]))
    if kind == "with its own coverage":
        fields["calibrations"] = [draw(in_memory)]
    elif kind != "none":
        in_file = kind == "file" and files
        fields["calibrations"] = draw(st.lists(NAMES, min_size=1)) if in_file else [calibration()]
        if draw(st.booleans()):
            sets = draw(st.sampled_from(["lac", "aps", "raps"]))
            fields |= {"coverage": draw(COVERAGES), "sets": sets, "mondrian": draw(st.booleans())}
        if draw(st.booleans()):
            fields |= {"risk": draw(st.floats(0.7, 0.9)), "guarantee": draw(st.floats(0.1, 0.9))}
    fields["reject"] = draw(st.sampled_from([None, False, True, "msp", "energy"]))
    if fields["reject"]:
        default = st.none() if fields["reject"] is True else st.nothing()
        fields["reject_threshold"] = draw(st.floats(-9, 9) | default)
    if kind == "with its own coverage" or not {"coverage", "risk"}.isdisjoint(fields):
        fields["within"] = None  # a guarantee is for all classes
    return Decision(**fields)


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    protocol = draw(protocols(methods=["tpt", "zero-shot"], dataset="", seed=0, stream_length=None))
    protocol = protocol.replace(methods=["tpt", "zero-shot"])
    prompts = st.none() | st.lists(PROMPTS, min_size=1, max_size=3, unique_by=lambda prompt: prompt.name)
    seeds = st.lists(st.integers(), min_size=1, max_size=3, unique=True)
    views = st.lists(st.integers(1, 99), min_size=1, max_size=2, unique=True)
    rates = st.lists(st.floats(0.001, 1), min_size=1, max_size=2, unique=True)
    sweeps = st.fixed_dictionaries({}, optional={"views": views, "learning-rate": rates})
    fields = {**plain_fields(Evaluation), "prompts": prompts, "seeds": seeds, "sweep": sweeps}
    decision = draw(decisions(files=False, threshold=0.5, within=None))
    return Evaluation(protocol=protocol, decision=decision, **draw(st.fixed_dictionaries({}, optional=fields)))


GENERATED = {Task: tasks(), Protocol: protocols(), Decision: decisions(), Evaluation: evaluations()}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
@given(st.data())
@settings(max_examples=60)
def test_json_and_back(record: type[Frozen], data: st.DataObject) -> None:
    """Equal, with the same hash, also after a copy or in another process."""
    made = data.draw(GENERATED[record])
    again = record(**json.loads(json.dumps(made.to_json())))
    assert again == made
    for other in (again, copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made)), made.replace()):
        assert other == made
        assert hash(other) == hash(made)
    assert again.to_json() == made.to_json()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_generated_records_have_all_fields(record: type[Frozen]) -> None:
    """A new field is missing in the strategies above."""
    names: set[str] = set()

    @given(GENERATED[record])
    @settings(max_examples=200, database=None)
    def collect(made: Frozen) -> None:
        default = record()
        names.update(name for name in record.model_fields if getattr(made, name) != getattr(default, name))

    collect()
    missing = set(record.model_fields) - names
    assert not missing, f"{missing} of {record.__name__} is never generated; add it to its strategy."


@pytest.mark.parametrize(
    "made",
    [
        Task(text_features=torch.eye(2)),
        Task(prompt=Prompt.random(2, width=4)),
        Task(examples={"a": [np.zeros((4, 4, 3), np.uint8)], "b": [np.ones((4, 4, 3), np.uint8)]}),
        Protocol(method=get_method("coop").override({"context": CoopContext(torch.zeros(2, 4))})),
    ],
    ids=["text features", "vectors", "images", "context"],
)
def test_objects_in_memory_become_digests_that_are_not_read(made: Frozen) -> None:
    written = json.loads(json.dumps(made.to_json()))
    with pytest.raises(OtptError) as error:
        type(made)(**written)
    assert "\n" not in str(error.value)


# ---- changes, spellings, descriptions -------------------------------------------------------------------------------


def test_replace_validates_and_keeps_the_rest() -> None:
    protocol = Protocol(method="tpt", views=16)
    assert protocol.replace(seed=3) == Protocol(method="tpt", views=16, seed=3)
    assert protocol.replace(budget=64).recipe.rounds == (8, 32)
    assert protocol.replace(budget=64).replace(views=4) == protocol.replace(views=4)
    for record, changes in (
        (protocol, {"views": -1}),
        (protocol, {"views": 4, "budget": 8}),
        (Task(classes=["cat", "dog"]), {"classes": ["cat", "cat"]}),
        (Task(examples={"cat": ["1.png"], "dog": ["2.png"]}), {"classes": ["pug", "owl"]}),
        (Task(classes=["cat", "dog", "pug"], groups={"pets": ["cat", "pug"]}), {"classes": ["cat", "dog"]}),
        (Task(classes={"cat": "it purrs", "dog": "it barks"}), {"classes": ["cat", "dog", "pug"]}),
        (Decision(reject=True), {"reject_threshold": float("nan")}),
        (Evaluation(seeds=[1]), {"seeds": [1, 1]}),
    ):
        with pytest.raises(OtptError):
            record.replace(**changes)


def test_records_are_immutable() -> None:
    for record in RECORDS:
        made = record()
        with pytest.raises(ValueError, match="frozen"):
            setattr(made, next(iter(record.model_fields)), None)


@pytest.mark.parametrize("record", [*RECORDS, *PREPARATIONS], ids=lambda record: record.__name__)
def test_every_field_has_a_description(record: type[Frozen]) -> None:
    for name, field in record.model_fields.items():
        assert field.description, f"{record.__name__}.{name} has no description."
        assert not field.description.endswith("."), name
        assert "\n" not in field.description


SPELLED = {
    "method": "tpt",
    "calibration": "mine.json",
    "prompt": "a sketch of a",
    "templates": ["a {}."],
    "descriptions": {"descriptions": ["a", "b"]},
    "text_features": torch.eye(2),
    "seed": 7,
}
"""A value of each other spelling."""


@pytest.mark.parametrize(
    ("record", "spelling"), [(record, name) for record in (Task, Protocol, Decision) for name in record.spellings]
)
def test_other_spellings_set_their_field_and_both_are_refused(record: type[Frozen], spelling: str) -> None:
    assert spelling in SPELLED, f"{record.__name__} has the spelling {spelling!r}; add a value to SPELLED."
    field = record.spellings[spelling]
    made = record(**{spelling: SPELLED[spelling]})
    assert getattr(made, field) != getattr(record(), field)
    with pytest.raises(OtptError, match=spelling):
        record(**{spelling: SPELLED[spelling], field: getattr(made, field)})


def test_keywords_of_an_evaluation_go_to_its_records() -> None:
    """Every field of Protocol and Decision is a keyword, and whatever it is set to arrives or is refused."""
    values = {"views": 8, "family": "shift", "official_precision": True, "memory_budget": 5, "method": "tpt"}
    values |= {"augmix": False, "calibration": calibration(), "coverage": 0.5, "sets": "lac", "reject": "msp"}
    evaluation = Evaluation(**values, seed=7, prompt="a sketch of a")
    for name, value in values.items():
        record: Frozen = evaluation.protocol if name in Protocol.keywords() else evaluation.decision
        field = type(record).spellings.get(name, name)
        assert getattr(record, field) == getattr(type(record)(**values_of(record, values)), field), (name, value)
    assert (evaluation.seeds, evaluation.prompts) == ((7,), (Prompt("a sketch of a"),))
    for both in ({"seed": 7, "seeds": [7]}, {"prompt": "a", "prompts": ["a"]}, {"protocol": {}, "views": 8}):
        with pytest.raises(OtptError, match=next(iter(both))):
            Evaluation(**both)


def values_of(record: Frozen, values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in type(record).keywords()}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
@given(st.data())
@settings(max_examples=30)
def test_unknown_keywords_are_refused_with_a_suggestion(record: type[Frozen], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name in record.keywords() if len(name) > 4]))
    position = data.draw(st.integers(1, len(name) - 1))
    mistyped = name[:position] + name[position + 1 :]
    if mistyped in record.keywords():
        return
    with pytest.raises(OtptError, match="Unknown setting") as error:
        record(**{mistyped: 1})
    assert name in str(error.value).partition("Available")[0]


# ---- what is refused ------------------------------------------------------------------------------------------------

BAD: list[tuple[type[Frozen], dict[str, Any], str]] = [
    (Protocol, {"vews": 8}, "mean: views"),
    (Protocol, {"recipe": ViewRecipe()}, "'recipe'"),
    (Protocol, {"views": 0}, "0"),
    (Protocol, {"views": "8"}, "'8'"),
    (Protocol, {"views": {"n_view": 8}}, "'n_view'"),
    (Protocol, {"views": {"rounds": "ab"}}, "'ab'"),
    (Protocol, {"views": {"crop_scale": 1}}, "crop_scale"),
    (Protocol, {"views": 8, "budget": 8}, "budget"),
    (Protocol, {"seed": 1.5}, "1.5"),
    (Protocol, {"seed": True}, "True"),
    (Protocol, {"budget": 0}, "0"),
    (Protocol, {"family": "pets"}, "'pets'"),
    (Protocol, {"methods": ["otp"]}, "'otp'"),
    (Protocol, {"methods": 7}, "7"),
    (Protocol, {"methods": ["tpt", "tpt"]}, "'tpt'"),
    (Protocol, {"methods": [{"objectives": {}}]}, "name"),
    (Protocol, {"methods": [{"name": "mine", "objektives": {}}]}, "objektives"),
    (Protocol, {"method": "tpt", "methods": ["tpt"]}, "method"),
    (Protocol, {"memory_budget": 0.5}, "0.5"),
    (Protocol, {"official_precision": "maybe"}, "'maybe'"),
    (Task, {"classes": "cat"}, "'cat'"),
    (Task, {"classes": 7}, "7"),
    (Task, {"classes": ["cat", 7]}, "7"),
    (Task, {"classes": ["cat", "cat"]}, "'cat'"),
    (Task, {"classes": ["cat", " "]}, "' '"),
    (Task, {"classes": {"cat": {"pug": "a dog"}}}, "groups"),
    (Task, {"classes": {"cat": "purrs", "dog": "barks"}, "descriptions": {"descriptions": ["a", "b"]}}, "descriptions"),
    (Task, {"classes": ["cat", "dog"], "descriptions": {"descriptions": ["a"]}}, "1"),
    (Task, {"templates": "a photo of a {}."}, "'a photo of a {}.'"),
    (Task, {"templates": ["a photo"]}, "'a photo'"),
    (Task, {"prompt": "[CLS]"}, "words"),
    (Task, {"prompt": 7}, "7"),
    (Task, {"texts": 7}, "7"),
    (Task, {"text_features": [[1.0]]}, "1.0"),
    (Task, {"groups": 7}, "7"),
    (Task, {"groups": {"pets": ["cat"]}, "classes": ["pug", "owl"]}, "'cat'"),
    (Task, {"groups": Groups({"pets": (0, 2)}), "classes": ["pug", "owl"]}, "'pets'"),
    (Task, {"groups": {"pets": ["cat", "dog"]}, "multi_label": True}, "groups"),
    (Task, {"examples": 7}, "7"),
    (Task, {"examples": {"cat": []}}, "'cat'"),
    (Task, {"examples": {"cat": ["1.png"]}, "classes": ["dog", "pug"]}, "'cat'"),
    (Task, {"examples": {"cat": ["1.png"], "dog": ["2.png"]}, "multi_label": True}, "examples"),
    (Decision, {"coverage": 0.9}, "coverage"),
    (Decision, {"calibrations": ["a.json"], "coverage": 1.5}, "1.5"),
    (Decision, {"calibrations": ["a.json"], "guarantee": 0.9}, "0.9"),
    (Decision, {"calibrations": ["a.json"], "mondrian": True}, "mondrian"),
    (Decision, {"calibrations": ["a.json"], "sets": "lac"}, "'lac'"),
    (Decision, {"calibrations": ["a.json"], "coverage": 0.5, "sets": "all"}, "'all'"),
    (Decision, {"calibrations": 7}, "7"),
    (Decision, {"calibrations": None}, "None"),
    (Decision, {"calibration": "a.json", "calibrations": ["a.json"]}, "calibration"),
    (Decision, {"reject": "nothing"}, "'nothing'"),
    (Decision, {"reject": 7}, "7"),
    (Decision, {"reject_threshold": 0.5}, "threshold"),
    (Decision, {"threshold": 1.5}, "1.5"),
    (Evaluation, {"seeds": 7}, "7"),
    (Evaluation, {"seeds": [0.5]}, "0.5"),
    (Evaluation, {"seed": True}, "True"),
    (Evaluation, {"methods": []}, "methods"),
    (Evaluation, {"protocol": 7}, "7"),
    (Evaluation, {"protocol": {"vews": 7}}, "mean: views"),
    (Evaluation, {"protocol": Protocol(seed=7)}, "seeds"),
    (Evaluation, {"dataset": "dtd"}, "dataset"),
    (Evaluation, {"stream_length": 9}, "stream_length"),
    (Evaluation, {"threshold": 0.7}, "threshold"),
    (Evaluation, {"classes": ["cat", "dog"]}, "classes"),
    (Evaluation, {"prompts": "a photo"}, "'a photo'"),
    (Evaluation, {"methods": ["templates-7"], "prompts": ["a photo"]}, "templates-7"),
    (Evaluation, {"calibration": calibration(), "methods": ["zero-shot"]}, "'tpt'"),
]


@pytest.mark.parametrize(("record", "values", "offending"), BAD)
def test_bad_input(record: type[Frozen], values: dict[str, Any], offending: str) -> None:
    with pytest.raises(OtptError) as error:
        record(**values)
    assert offending in str(error.value)
    assert "\n" not in str(error.value)


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
@given(st.data())
@settings(max_examples=150)
def test_any_value_is_read_or_refused_in_one_sentence(record: type[Frozen], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(record.keywords()))
    with suppress(OtptError):  # whose text is always a single line
        record(**{name: data.draw(HOSTILE)})


def test_the_task_and_the_decision_must_fit_the_protocol() -> None:
    for task, protocol in (
        (Task(classes=["cat"]), Protocol(method="o-tpt")),
        (Task(classes=["cat", "dog"], multi_label=True), Protocol(method="o-tpt")),
        (Task(classes=["cat", "dog"]), Protocol(method="multi-label")),
        (Task(examples={"cat": ["1.png"], "dog": ["2.png"]}), Protocol(method="o-tpt")),
    ):
        with pytest.raises(OtptError, match=protocol.methods[0].name):
            protocol.for_task(task)
    for task, name in (
        (Task(), "confident-half"),
        (Task(classes=["cat"]), "multi-label"),
        (Task(multi_label=True), "multi-label"),
        (Task(examples={"cat": ["1.png"], "dog": ["2.png"]}), "gda"),
    ):
        assert Protocol().for_task(task).methods == (get_method(name),)
    with pytest.raises(OtptError, match="coverage"):
        Decision(calibrations=["a.json"], coverage=0.9).check_task(Task(multi_label=True))
    assert isinstance(Task(text_features=torch.eye(2)).texts, TextFeatures)
