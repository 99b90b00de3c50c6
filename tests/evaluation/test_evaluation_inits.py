"""Inits that are computed, under ``evaluate``: rows, the prompt column, configuration, and the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from oracles.models.tiny import tiny_backbone
from oracles.runs.evaluation_bench import COUNT, NAMES, backbone, confidences, dataset, settings

from otpt.errors import OtptError
from otpt.evaluation import evaluate
from otpt.features import FeatureCache
from otpt.methods.fpp import pretrain
from otpt.prompts import Prompt, Templates, dataset_templates
from otpt.settings import Fpp

pytestmark = pytest.mark.slow

FPP = Fpp(steps=3, seed=5)


@pytest.mark.equality
def test_fpp_is_the_method_from_its_vectors(tmp_path: Path) -> None:
    given = settings(methods=["fpp", "fpp+tpt", "tpt"], fpp=FPP)
    found = confidences(tmp_path / "run", given)
    assert list(found) == [("fpp", "fpp"), ("fpp", "fpp+tpt"), ("a photo of a", "tpt")]
    vectors = pretrain(tiny_backbone("vit"), NAMES, FPP).vectors
    assert vectors is not None
    plain = confidences(tmp_path / "plain", settings(methods=["zero-shot", "tpt"], prompts=[Prompt.learned(vectors)]))
    assert list(plain.values()) == [found["fpp", "fpp"], found["fpp", "fpp+tpt"]]


def test_one_context_for_all_seeds_in_the_cache(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    given = settings(methods=["fpp+tpt"], fpp=FPP, seeds=[0, 1])
    run = evaluate([dataset(COUNT), dataset(COUNT, "two")], backbone(), given, out=tmp_path / "run", cache=cache).run
    assert cache.info().contexts == 1, "both sets have the same classes"
    (column,) = run.config["datasets"][0]["columns"]
    assert column["prompt"]["fpp"]["seed"] == 5
    assert column["prompt"]["name"] == "fpp"
    other = settings(methods=["fpp+tpt"], fpp=Fpp(steps=3, seed=6), seeds=[0, 1])
    with pytest.raises(OtptError, match=r"prompt\.fpp\.seed is 5 there and 6 now"):
        evaluate([dataset(COUNT), dataset(COUNT, "two")], backbone(), other, out=tmp_path / "run", cache=cache)


def test_templates_of_the_data_set(tmp_path: Path) -> None:
    given = settings(methods=["dataset-templates", "zero-shot"])
    dtd = confidences(tmp_path / "dtd", given, "dtd")
    assert list(dtd) == [("dataset-templates", "dataset-templates"), ("a photo of a", "zero-shot")]
    mine = settings(methods=["templates"], templates=Templates("mine", ["{} texture."]))
    assert confidences(tmp_path / "mine", mine) == {
        ("mine", "templates"): dtd["dataset-templates", "dataset-templates"]
    }
    own = confidences(tmp_path / "own", given, "own")
    torch.testing.assert_close(*(torch.tensor(values) for values in own.values()), rtol=0, atol=1e-6)
    config = evaluate(dataset(COUNT, "dtd"), backbone(), given, out=tmp_path / "dtd").run.config
    recorded = config["datasets"][0]["columns"][0]["prompt"]
    assert recorded == {"name": "dataset-templates", "templates": dataset_templates("dtd").digest}
    changed = settings(methods=["templates"], templates=Templates("mine", ["{} texture!"]))
    with pytest.raises(OtptError, match="templates"):
        confidences(tmp_path / "mine", changed)
