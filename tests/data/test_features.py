"""Features in place of images: files, evaluations, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from oracles.models.tiny import tiny_backbone

from otpt import OtptError, functional
from otpt.cli import main
from otpt.data import feature_dataset, load_dataset
from otpt.evaluation import Evaluation, evaluate
from otpt.methods import field_names, get_method
from otpt.methods.caches import tda
from otpt.runs import Run

NAMES = ["cat", "dog", "pug", "tea"]
SCALE = 20.0


def arrays(images: int = 40, views: int = 0, width: int = 12) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    texts = draw.normal(size=(4, width))
    labels = draw.integers(0, 4, images)
    noise = draw.normal(size=(images, views, width) if views else (images, width))
    features = (texts[labels][:, None] if views else texts[labels]) + 0.8 * noise
    return {
        "features": features.astype(np.float32),
        "labels": labels,
        "class_names": np.array(NAMES),
        "text_features": texts.astype(np.float32),
        "logit_scale": np.array(SCALE),
    }


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_zero_shot_from_npz(tmp_path: Path) -> None:
    given = arrays()
    np.savez(tmp_path / "mine.npz", **given)
    out = tmp_path / "run"
    assert main(["evaluate", str(tmp_path / "mine.npz"), "--methods", "zero-shot", "tda", "oga", "--seeds", "0", "1",
                 "--save-probabilities", "--out", str(out)]) == 0  # fmt: skip
    rows = Run(out).to_pandas()
    logits = SCALE * unit(given["features"]) @ unit(given["text_features"]).T
    own = rows[(rows.method == "zero-shot") & (rows.seed == 0)].sort_values("id", key=lambda ids: ids.astype(int))
    assert own.prediction.tolist() == logits.argmax(axis=1).tolist()
    assert len(rows) == 2 * 3 * 40


def test_all_methods_of_single_features(tmp_path: Path) -> None:
    """Methods of the field either run on single features or are refused by name."""
    data = feature_dataset(*(arrays(12)[key] for key in ("features", "labels", "class_names", "text_features")))
    ran, refused = [], {}
    for name in field_names():
        try:
            evaluate(data, None, Evaluation(methods=[name]), out=tmp_path / name.replace("+", "_"))
            ran.append(name)
        except OtptError as error:
            refused[name] = str(error)
    needed = ("ttributes", "learned prompt")  # inputs of an init, which are asked for first
    assert [name for name, sentence in refused.items() if not any(word in sentence for word in (name, *needed))] == []
    assert {"tda", "bca", "dota", "oga", "pta", "onzeta", "ecalp", "adapt-gda", "lsa", "label-prior"} <= set(ran)
    assert not {"tpt", "zero", "fpp", "maple", "dmn"} & set(ran)


def test_views_as_features(tmp_path: Path) -> None:
    given = arrays(10, views=8)
    data = feature_dataset(given["features"], given["labels"], NAMES, given["text_features"], logit_scale=SCALE)
    settings = Evaluation(methods=["mean-logit", "tps"], save_probabilities=True)
    evaluate(data, None, settings, out=tmp_path / "run")
    rows = Run(tmp_path / "run").to_pandas()
    logits = (SCALE * unit(given["features"]) @ unit(given["text_features"]).T).mean(axis=1)
    own = rows[rows.method == "mean-logit"].sort_values("index")
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    order = [int(each) for each in own["id"]]
    np.testing.assert_allclose(own.confidence, expected[order].max(axis=1), atol=1e-5)


def test_stream_length_is_the_number_of_images(tmp_path: Path) -> None:
    data = feature_dataset(*(arrays(12)[key] for key in ("features", "labels", "class_names", "text_features")))
    assert Evaluation(methods=["onzeta"]).on(data).protocol.stream_length == 12
    assert Evaluation(methods=["onzeta"], limit=5).on(data).protocol.stream_length == 5


def test_texts_of_a_backbone(tmp_path: Path) -> None:
    backbone = tiny_backbone("vit")
    features = np.random.default_rng(0).normal(size=(8, backbone.embed_dim)).astype(np.float32)
    columns = {"id": [f"{NAMES[i % 4]}/{i}.png" for i in range(8)], "feature": list(features)}
    table = pa.table(columns).replace_schema_metadata({"otpt.model": "some-model"})
    pq.write_table(table, tmp_path / "mine.parquet")
    data = load_dataset(str(tmp_path / "mine.parquet"))
    assert (data.class_names, data.labels[:4]) == (tuple(NAMES), (0, 1, 2, 3))
    assert data.backbone == "some-model"  # type: ignore[attr-defined]
    evaluate(data, backbone, Evaluation(methods=["zero-shot", "tda"]), out=tmp_path / "run")
    assert set(Run(tmp_path / "run").to_pandas().method) == {"zero-shot", "tda"}
    narrow = feature_dataset(features[:, :5], data.labels, NAMES)
    with pytest.raises(OtptError, match=f"5 .*{backbone.embed_dim}"):
        evaluate(narrow, backbone, Evaluation(methods=["zero-shot"]), out=tmp_path / "narrow")
    with pytest.raises(OtptError, match="backbone"):
        evaluate(data, None, Evaluation(methods=["zero-shot"]), out=tmp_path / "none")


def test_classes_without_a_text(tmp_path: Path) -> None:
    given = arrays()
    given["text_features"][1] = np.nan
    np.savez(tmp_path / "mine.npz", **given)
    with pytest.raises(OtptError, match="dog"):
        load_dataset(str(tmp_path / "mine.npz"))
    data = load_dataset(str(tmp_path / "mine.npz"), drop_missing_texts=True)
    assert data.class_names == ("cat", "pug", "tea")
    kept = [i for i, label in enumerate(given["labels"]) if label != 1]
    assert data.ids == tuple(map(str, kept))
    assert data.labels == tuple({0: 0, 2: 1, 3: 2}[given["labels"][i]] for i in kept)


def test_splits(tmp_path: Path) -> None:
    given, other = arrays(), arrays(6)
    np.savez(tmp_path / "mine.npz", **given, val_features=other["features"], val_labels=other["labels"])
    assert len(load_dataset(str(tmp_path / "mine.npz"))) == 40
    assert len(load_dataset(str(tmp_path / "mine.npz"), split="val")) == 6


BAD = {
    "narrow texts": ({"text_features": np.ones((4, 11))}, "(4, 11)"),
    "NaN image": ({"features": np.where(np.arange(40)[:, None] == 7, np.nan, arrays()["features"])}, "row 7"),
    "label outside": ({"labels": np.full(40, 4)}, "4"),
    "negative label": ({"labels": np.full(40, -1)}, "-1"),
    "fewer labels": ({"labels": np.zeros(39, int)}, "39"),
    "whole numbers": ({"features": np.ones((40, 12), int)}, "int"),
    "no classes": ({"class_names": None}, "class names"),
    "no labels": ({"labels": None}, "labels"),
    "objects": ({"class_names": np.array(NAMES, dtype=object)}, "Object"),
    "ids": ({"ids": np.array(["a"] * 40)}, "'a'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(tmp_path: Path, case: str) -> None:
    changed, named = BAD[case]
    given = {key: value for key, value in {**arrays(), **changed}.items() if value is not None}
    np.savez(tmp_path / "mine.npz", **given)
    with pytest.raises(OtptError) as error:
        load_dataset(str(tmp_path / "mine.npz"))
    assert named in str(error.value)


REFUSED = ["tpt", "zero", "coop", "maple+tpt", "o-tpt+static", "templates-7", "dyna-prompt", "his-tpt", "prompt-align"]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_methods(tmp_path: Path, name: str) -> None:
    data = feature_dataset(*(arrays()[key] for key in ("features", "labels", "class_names", "text_features")))
    with pytest.raises(OtptError) as error:
        evaluate(data, None, Evaluation(methods=[get_method(name)]), out=tmp_path / "run")
    assert name in str(error.value) or "needs a learned prompt" in str(error.value)


def test_images_of_a_stream_are_predicted_one_after_the_other() -> None:
    """Given together, and in several threads, each image sees the state of those before it."""
    given = arrays(24)
    features, texts = (torch.from_numpy(unit(given[key].astype(float))) for key in ("features", "text_features"))
    found = functional.predict(features[:, None], texts, method="tda", logit_scale=SCALE)
    state: dict[str, Any] = {}
    for i, feature in enumerate(features):
        logits = SCALE * feature[None] @ texts.mT
        expected = tda(feature[None], logits, state)[0].softmax(dim=0)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-10)


def test_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_bytes(b"PK\x03\x04 nothing")
    (tmp_path / "mine.parquet").write_bytes(b"PAR1 nothing")
    for name in ("mine.npz", "mine.parquet", "none.npz"):
        with pytest.raises(OtptError) as error:
            load_dataset(str(tmp_path / name))
        assert name in str(error.value)
