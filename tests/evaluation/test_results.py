"""What a run stores and what it computes from it: against the classifier and against metrics of whole probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from oracles.data.data_files import jpeg
from oracles.runs.evaluation_bench import (
    METHODS,
    NAMES,
    RECIPE,
    backbone,
    dataset,
    files,
    image,
    image_number,
    rows,
    settings,
)

from otpt import Classifier, Method, OtptError, Prompt, load_backbone
from otpt.cli import main
from otpt.data import Dataset, load_dataset
from otpt.evaluation import Execution, evaluate
from otpt.methods import field_methods, published_methods
from otpt.metrics import Metrics
from otpt.metrics import evaluate as all_metrics
from otpt.runs import Run, results_frame


def by_the_classifier(count: int, method: str, **options: object) -> np.ndarray:
    clf = Classifier(backbone(), views=RECIPE, **options).set_classes(NAMES)
    answers = clf.stream([image(i) for i in range(count)], [method], workers=0)
    return np.stack([answer[method].probabilities for answer in answers])


def close(found: pd.DataFrame, method: str, expected: Metrics) -> None:
    """Whether the only row of a method has these metrics."""
    (row,) = found[found.method == method].to_dict("records")
    for name, value in expected.as_dict().items():
        assert row[name] == (value if isinstance(value, str) else pytest.approx(value, abs=1e-8)), name


@pytest.mark.slow
@pytest.mark.parametrize("official", [False, True])
def test_rows_and_metrics_are_those_of_the_classifier(tmp_path: Path, official: bool) -> None:
    result = evaluate(dataset(8), backbone(), settings(official_precision=official), out=tmp_path / "run")
    labels = np.arange(8) % len(NAMES)
    found = rows(tmp_path / "run")
    assert sorted(row["method"] for row in found) == sorted(METHODS * 8)
    for method in METHODS:
        p = by_the_classifier(8, method, official_precision=official)
        close(result.frame, method, all_metrics(p, labels))
        again = results_frame(result.run, n_bins=100, side="left")
        close(again, method, all_metrics(p, labels, n_bins=100, side="left"))
        for i, row in enumerate(row for row in found if row["method"] == method):
            assert (row["dataset"], row["seed"], row["id"]) == ("tiny", 0, f"p/{i}")
            assert (row["label"], row["error"], row["flags"]) == (labels[i], None, [])
            assert row["confidence"] == p[i].max()
            assert row["probability"] == p[i, labels[i]]
            assert row["correct"] == (row["prediction"] == labels[i])
            order = np.argsort(-p[i], kind="stable")[: len(row["top_classes"])]
            assert row["top_classes"] == order.tolist()
            assert len(order) >= 5
            assert row["top_probabilities"] == p[i, order].tolist()
            assert (np.delete(p[i], order) < 0.01).all()


def test_zeros_and_certainty_are_scored_as_by_the_metrics(tmp_path: Path) -> None:
    """Rounded to float16 many probabilities are exactly 0 or 1, which are special to bins (lo, hi]."""
    sharp = [Method("sharp", {}, calibrate="temperature", temperature=0.01)]
    chosen = settings(methods=sharp, official_precision=True, save_probabilities=True)
    result = evaluate(dataset(10), backbone(), chosen, out=tmp_path / "run")
    found = rows(tmp_path / "run")
    p = np.array([row["probabilities"] for row in found])
    assert (p == 0).any()
    assert (p == 1).any()
    for side in ("right", "left"):
        expected = all_metrics(p, np.array([row["label"] for row in found]), side=side)
        close(results_frame(result.run, side=side), "sharp", expected)


def test_nothing_depends_on_threads_or_shards(tmp_path: Path) -> None:
    few = {"methods": ["zero-shot", "o-tpt"], "views": 4}
    one = evaluate(dataset(9), backbone(), settings(**few), out=tmp_path / "one")
    torch.set_num_threads(3)
    evaluate(dataset(9), backbone(), settings(**few), out=tmp_path / "three")
    assert files(tmp_path / "one") == files(tmp_path / "three")
    for size in (1, 50):
        other = evaluate(dataset(9), backbone(), settings(**few, shard_size=size), out=tmp_path / f"size-{size}")
        assert files(tmp_path / "one", suffix=".parquet") == files(other.run.folder, suffix=".parquet")
        assert other.frame.drop(columns="run").equals(one.frame.drop(columns="run"))


@pytest.mark.long
@pytest.mark.equality
def test_no_method_depends_on_threads(tmp_path: Path) -> None:
    """Also of use on imitated processors, see ``tests/processors.py``."""
    known = {**published_methods(), **field_methods()}
    own_networks = ("baple", "fpt", "promptsmooth")
    plain = {name: each for name, each in known.items() if each.init in ("words", "templates-7")}
    every = [name for name, each in plain.items() if each.adapt not in own_networks]
    assert len(every) > 50
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        evaluate(dataset(7), backbone(), settings(methods=every, seeds=(0, 1)), out=tmp_path / str(threads))
        assert files(tmp_path / str(threads)) == files(tmp_path / "1")


def test_methods_prompts_and_seeds_together_equal_each_alone(tmp_path: Path) -> None:
    prompts = ["a photo of a", "an image of [CLS] outside"]
    evaluate(dataset(3), backbone(), settings(prompts=prompts, seeds=(0, 7), views=4), out=tmp_path / "all")
    together = rows(tmp_path / "all", seed=7)
    for prompt, method in zip(prompts, ("tpt", "zero-shot"), strict=True):
        alone = settings(prompts=[prompt], methods=[method], seeds=(7,), views=4)
        evaluate(dataset(3), backbone(), alone, out=tmp_path / method)
        assert rows(tmp_path / method, seed=7) == [
            row for row in together if (row["prompt"], row["method"]) == (prompt, method)
        ]


def test_unreadable_images_are_recorded_and_the_rest_is_evaluated(tmp_path: Path) -> None:
    images = [image(0), b"no image", image(2), tmp_path / "missing.png", image(4)]
    result = evaluate(dataset(images=images), backbone(), settings(), out=tmp_path / "run")
    assert result.unreadable == 2
    bad = [row for row in rows(tmp_path / "run") if row["error"]]
    assert {image_number(row) for row in bad} == {1, 3}
    assert len(bad) == 2 * len(METHODS)
    assert "missing.png" in bad[-1]["error"]
    assert all(row["confidence"] is None and row["top_classes"] is None for row in bad)
    close(result.frame, "o-tpt", all_metrics(by_the_classifier(5, "o-tpt")[[0, 2, 4]], np.array([0, 2, 4])))
    nothing = evaluate(dataset(images=[b"x", b"y"]), backbone(), settings(), out=tmp_path / "nothing")
    assert nothing.frame.images.tolist() == [0] * len(METHODS)


def test_errors_of_a_source_are_recorded(tmp_path: Path) -> None:
    def source(index: int) -> object:
        if index == 1:
            raise ConnectionResetError("the store went away")
        return image(index)

    data = Dataset("own", NAMES, ["a", "b", "c"], [0, 1, 2], source)
    result = evaluate(data, backbone(), settings(methods=["zero-shot"]), out=tmp_path / "run")
    ((where, reason),) = result.unreadable_images.items()
    assert where == ("own", "b")
    assert "ConnectionResetError: the store went away" in reason
    assert result.frame.images.tolist() == [2]


def test_a_damaged_image_of_a_hugging_face_set_is_recorded(tmp_path: Path) -> None:
    library = pytest.importorskip("datasets")
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=["cat", "dog"])})
    images = [{"bytes": jpeg((200, 90, 9)), "path": None}, {"bytes": b"junk", "path": None}]
    library.Dataset.from_dict({"image": images, "label": [0, 1]}, features=features).save_to_disk(str(tmp_path / "x"))
    data = load_dataset(f"hf:{tmp_path / 'x'}")
    result = evaluate(data, backbone(), settings(methods=["zero-shot"]), out=tmp_path / "run")
    assert [name for _, name in result.unreadable_images] == ["test/1"]


def test_the_configuration_records_everything(tmp_path: Path) -> None:
    result = evaluate(dataset(3), backbone(), settings(seeds=(1,), limit=2), out=tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["backbone"]["fingerprint"] == backbone().fingerprint
    assert config["methods"]["o-tpt"]["objectives"]["orthogonality"] == {"fine-grained": 18.0, "shift": 2.0}
    assert list(config["methods"]) == list(METHODS)
    assert (config["shard_size"], config["versions"]["torch"]) == (4, torch.__version__.split("+")[0])
    (only,) = config["datasets"]
    assert (only["family"], only["classes"]) == ("fine-grained", list(NAMES))
    column = only["columns"][2]
    assert (column["method"], column["images"], column["views"]) == ("o-tpt", {"1": 2}, RECIPE.key)
    assert column["prompt"] == {"name": "a photo of a", "words": "a photo of a", "tokens": None, "vectors": None}
    assert list(Run(tmp_path / "run").items()) == list(result.run.items())


def test_data_sets_decide_their_own_recipe(tmp_path: Path) -> None:
    one, two = dataset(3), dataset(3, name="emoji/shift")
    two.family, two.augmix, two.prompt = "shift", False, "an example of"
    run = evaluate([one, two], backbone(), settings(methods=["o-tpt"]), out=tmp_path / "run").run
    assert ["augmix=on" in str(each.columns[0].views) for each in run.datasets] == [True, False]
    (row,) = (row for row in rows(tmp_path / "run", name="emoji/shift") if row["id"] == "p/0")
    clf = Classifier(backbone(), "o-tpt", family="shift", views=RECIPE.__class__(n_views=12, augmix=False))
    expected = clf.set_classes(NAMES, "an example of").predict(image(0))
    assert (row["prompt"], row["confidence"]) == ("an example of", expected.confidence)


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"methods": ["o-tpp"]}, "o-tpp"),
        ({"methods": []}, "method"),
        ({"seeds": [1, 1]}, "1"),
        ({"seeds": []}, "seed"),
        ({"seeds": "01"}, "01"),
        ({"prompts": ["a photo of a", Prompt("a_photo of a")]}, "a photo of a"),
        ({"prompts": "a photo"}, "a photo"),
        ({"family": "medical"}, "medical"),
        ({"limit": 0}, "limit is 0"),
        ({"shard_size": 0}, "shard_size is 0"),
        ({"n_bins": 101}, "n_bins is 101"),
        ({"side": "middle"}, "middle"),
        ({"features": "int8"}, "int8"),
        ({"bins": 10}, "n_bins"),
    ],
)
def test_bad_input(changes: dict[str, object], value: str) -> None:
    with pytest.raises(OtptError, match=value):
        settings(**changes)


def test_names_in_place_of_objects(tmp_path: Path) -> None:
    few = {"methods": ["zero-shot"], "limit": 3}
    by_name = evaluate("emoji/food", "pocket", out=tmp_path / "names", execution=Execution(device="cpu"), **few)
    model = load_backbone("pocket", device="cpu")
    by_object = evaluate(load_dataset("emoji/food"), model, out=tmp_path / "objects", threads=0, **few)
    assert by_name.frame["nll"].tolist() == by_object.frame["nll"].tolist()


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"classes": ["a", "b"]}, "classes"),
        ({"thread": 1}, "threads"),
        ({"threads": -1}, "threads is -1"),
        ({"pool": "cluster"}, "cluster"),
        ({"engine": "ray"}, "engine"),
    ],
)
def test_keywords_of_evaluate(changes: dict[str, object], value: str, tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=value):
        evaluate(dataset(2), backbone(), out=tmp_path / "run", **changes)
    with pytest.raises(OtptError, match="limit"):
        evaluate(dataset(2), backbone(), settings(), out=tmp_path / "run", limit=1)
    assert not (tmp_path / "run").exists()


def test_bad_data(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="'tiny'"):
        evaluate([dataset(2), dataset(3)], backbone(), settings(), out=tmp_path / "run")
    data = Dataset("own", NAMES[:2], ["a/1.png", "a/\udcff.png"], [0, 1], [image(0), image(1)].__getitem__)
    with pytest.raises(OtptError, match="udcff"):
        evaluate(data, backbone(), settings(methods=["zero-shot"]), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_readable_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / "bad" / name).mkdir(parents=True)
        (tmp_path / "bad" / name / "1.png").write_bytes(b"no image")
    run = str(tmp_path / "run")
    words = ["--backbone", "pocket", "--device", "cpu", "--methods", "zero-shot", "--out", run, "--no-cache"]
    assert main(["evaluate", str(tmp_path / "bad"), *words]) == 3
    for command in (["metrics", run], ["table", run], ["metrics", run, "--intervals"], ["table", run, "--intervals"]):
        assert main(command) in (0, 3)
    assert "Traceback" not in capsys.readouterr().err
