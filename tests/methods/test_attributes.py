"""Attributes of classes on their way from files, Python and the command line to predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.models.tiny import open_clip_local_dir, tiny_backbone
from PIL import Image
from torch.nn.functional import normalize

from otpt import Classifier
from otpt.cli import main
from otpt.errors import OtptError
from otpt.methods import get_method, read_attributes

NAMES = ("cat", "dog", "sea")
ATTRIBUTES = {"cat": ["small", "quick"], "dog": ["loyal", "large"], "sea": ["blue", "calm"]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(ATTRIBUTES), encoding="utf-8")
    return path


def test_files(file: Path, tmp_path: Path) -> None:
    assert read_attributes(file) == ATTRIBUTES
    toml = tmp_path / "tiny.toml"
    toml.write_text('cat = ["small"]\n"red panda" = ["striped"]\n', encoding="utf-8")
    assert read_attributes(toml) == {"cat": ["small"], "red panda": ["striped"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", "{"), ("a.toml", "="), ("a.json", "[]"), ("a.json", '{"cat": "small"}'), ("a.json", '{"cat": [1]}')],
)
def test_files_that_cannot_be_used(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(OtptError, match=name):
        read_attributes(tmp_path / name)


def test_a_class_has_the_sum_over_its_texts() -> None:
    """Zero-shot with attributes, from the probabilities of all six texts as classes of their own."""
    backbone = tiny_backbone("vit", "float64")
    generator = torch.Generator().manual_seed(0)
    views = normalize(torch.randn(2, 1, 32, generator=generator, dtype=torch.float64), dim=-1)
    classifier = Classifier(backbone, get_method("attributes").override({"attributes": ATTRIBUTES})).set_classes(NAMES)
    texts = [f"{attribute} {name}" for name in NAMES for attribute in ATTRIBUTES[name]]
    each = Classifier(backbone, "zero-shot").set_classes(texts)
    for found, of_texts in zip(
        classifier.classify_features(views, [classifier.method]),
        each.classify_features(views, ["zero-shot"]),
        strict=True,
    ):
        expected = of_texts["zero-shot"].probabilities.reshape(3, 2).sum(1)
        np.testing.assert_allclose(found["attributes"].probabilities, expected, rtol=0, atol=1e-12)


def test_functions_of_all_views_see_the_classes() -> None:
    """Calibrations and aggregations get (V, C) logits and (C, D) text features, however many texts there are."""
    import otpt

    @otpt.aggregation
    def seen_by_tca(probabilities, text_features, adapted_text_features):  # type: ignore[no-untyped-def]
        assert probabilities.shape == (12, 3)
        assert text_features.shape == adapted_text_features.shape == (3, 32)
        return probabilities.mean(dim=0)

    generator = torch.Generator().manual_seed(0)
    views = normalize(torch.randn(2, 12, 32, generator=generator, dtype=torch.float64), dim=-1)
    recipe = otpt.ViewRecipe(n_views=12)
    classifier = Classifier(tiny_backbone("vit", "float64"), views=recipe).set_classes(NAMES)
    methods = [get_method(name).override({"attributes": ATTRIBUTES}) for name in ("tca", "tca+seen-by-tca")]
    for answer in classifier.classify_features(views, methods):
        assert not np.allclose(answer["tca"].probabilities, answer["tca+seen-by-tca"].probabilities)


def test_predict(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_clip_local_dir(tmp_path / "model")
    image = tmp_path / "image.png"
    Image.effect_noise((40, 40), 80).convert("RGB").save(image)
    command = ["predict", str(image), "--classes", *NAMES, "--backbone", f"local-dir:{tmp_path / 'model'}"]
    command += ["--views", "12", "--json", "--method", "tca", "attributes"]
    assert main([*command, "--set", f"attributes={file}"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["method"] for row in rows] == ["tca", "attributes"]
    assert rows[0]["confidence"] != rows[1]["confidence"]
    assert main(command) == 2
    assert "--set attributes=FILE" in capsys.readouterr().err
