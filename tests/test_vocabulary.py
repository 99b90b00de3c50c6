"""One thing has one name: in Python, on the command line and over HTTP.

The names are taken from the records, the signatures, the commands and the fields of requests. A difference is listed
here with its reason, or it is a mistake.
"""

from __future__ import annotations

import inspect
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from oracles.models.tiny import open_clip_local_dir

import otpt
from otpt import bulk
from otpt.backbones.sources import QuickGeluWarning
from otpt.cli import main
from otpt.cli.app import make_app, with_options
from otpt.cli.commands import all_commands
from otpt.cli.options import RECORDS
from otpt.errors import OtptError
from otpt.evaluation.evaluation import Execution
from otpt.records import NO_OPTION, Frozen, mark_of
from otpt.serve.config import ServiceConfig
from otpt.serve.fields import FORMS
from otpt.serve.schemas import CompareForm, CompareRequest, PredictForm, PredictRequest

IN_TEXTS = {"texts": "prompt, templates", "descriptions": "a mapping", "text_features": "an array"}
"""Fields that the command line has in another form, or not, because a word cannot hold them."""
OTHER_OPTIONS = {
    "prompts": "--prompt",  # a single one; 'otpt evaluate sweep' takes --prompts
    "calibrations": "--calibration",  # the singular is a keyword too
    "plugins": "--plugin",
    "pool": "--engine",  # a pool is an object; its name is the engine
    "progress": "",  # an object
    "command": "",  # recorded by the command line itself
    "ranked": "--sort",
}
"""Keywords of Python whose option has another name; "" for those that only objects have."""
ONLY_REQUESTS = {
    "image": "the source", "images": "the sources", "labels": "class names, as 'classes' is the name of a list",
    "model": "one of those served", "top": "an argument of Prediction.top and --top", "explain": "Classifier.explain",
    "show_views": "for the page",
}  # fmt: skip
"""Fields of requests that are no keywords of the records."""


@cache
def options() -> frozenset[str]:
    """Names of the options of all commands."""
    return frozenset(
        name
        for target, _ in (entry for members in all_commands().values() for entry in members.values())
        for argument in make_app("otpt", target).assemble_argument_collection()
        for name in argument.names
    )


def option_of(keyword: str) -> str:
    return OTHER_OPTIONS.get(keyword, f"--{keyword.replace('_', '-')}")


@pytest.mark.parametrize(
    ("record", "keyword"), [(record, keyword) for record in (*RECORDS, Execution) for keyword in record.keywords()]
)
def test_keywords_of_records_are_options(record: type[Frozen], keyword: str) -> None:
    field = record.model_fields[record.spellings.get(keyword, keyword)]
    if mark_of(field, NO_OPTION) is not None or keyword in IN_TEXTS or not option_of(keyword):
        return
    assert option_of(keyword) in options()


@pytest.mark.parametrize(
    "function", [bulk.predict, bulk.embed, otpt.load_backbone], ids=lambda function: function.__name__
)
def test_keywords_of_functions_are_options(function: Callable[..., object]) -> None:
    objects = {"classifier", "source", "out", "job", "spec", "tokenizer", "preprocess", "metadata"}
    for keyword in inspect.signature(function).parameters.keys() - objects:
        assert not option_of(keyword) or option_of(keyword) in options(), keyword


def test_fields_of_requests_are_keywords() -> None:
    keywords = {keyword for record in RECORDS for keyword in record.keywords()}
    for request in (PredictRequest, CompareRequest, PredictForm, CompareForm):
        assert set(request.model_fields) - set(ONLY_REQUESTS) <= keywords
    assert not set(ONLY_REQUESTS) & keywords, "they are keywords by now"


def test_forms_and_json_have_the_same_fields() -> None:
    assert set(PredictForm.model_fields) == set(PredictRequest.model_fields)
    assert set(CompareForm.model_fields) == set(CompareRequest.model_fields)


def test_other_forms_of_fields_exist() -> None:
    fields = {*PredictRequest.model_fields, *CompareRequest.model_fields}
    for sentence in FORMS.values():
        assert any(word in fields for word in sentence.replace(",", "").split()), sentence


def test_the_configuration_of_the_service_has_the_names_of_its_options() -> None:
    others = {"models": "--backbone", "calibrations": "--calibration", "limits": "--max-body", "hosts": "--allow-urls"}
    for field in ServiceConfig.model_fields:
        assert others.get(field, f"--{field.replace('_', '-')}") in options(), field


def test_one_option_per_meaning() -> None:
    """Options with the same help text have the same name in all commands."""
    names: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for target, _ in (entry for members in all_commands().values() for entry in members.values()):
        for argument in make_app("otpt", target).assemble_argument_collection():
            if argument.parameter.help and argument.name.startswith("--"):
                names[argument.parameter.help].add(tuple(argument.names))
    assert {text: found for text, found in names.items() if len(found) > 1} == {}


# ---- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default:It is unknown")
def test_messages_spell_options_as_the_caller_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        warnings.warn("It is unknown. Pass quick_gelu=True or False to choose.", QuickGeluWarning, stacklevel=2)
        raise OtptError("Cannot infer the architecture; pass architecture=…")

    monkeypatch.setattr("otpt.backbones.load_backbone", load)
    (tmp_path / "x.png").write_bytes(b"")
    words = ["predict", str(tmp_path / "x.png"), "--classes", "a", "b", "--backbone", "x.pt"]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "--quick-gelu or --no-quick-gelu" in err
    assert "--architecture NAME" in err
    assert "quick_gelu=" not in err
    assert with_options("nothing of that kind") == "nothing of that kind"


def test_a_folder_of_hugging_face_under_the_prefix_of_open_clip(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(OtptError, match=f"hf:{tmp_path}"):
        otpt.load_backbone(f"local-dir:{tmp_path}")
    open_clip_local_dir(tmp_path)
    assert otpt.load_backbone(f"local-dir:{tmp_path}", device="cpu").embed_dim > 0
