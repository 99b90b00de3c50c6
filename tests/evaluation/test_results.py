"""What a run stores and what it computes from it: against the classifier and against metrics of whole probabilities."""

from __future__ import annotations

import json
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from oracles.data.data_files import jpeg
from oracles.runs.evaluation_bench import (
    METHODS,
    NAMES,
    RECIPE,
    backbone,
    backbone_on,
    dataset,
    files,
    image,
    image_number,
    rows,
    settings,
    shard,
    small_dataset,
)

from otpt import Classifier, Method, OtptError, Prompt
from otpt.data import Dataset, load_dataset
from otpt.data.strata import stratified_order
from otpt.evaluation import Job, LocalEngine, ProcessEngine, evaluate, run_job
from otpt.metrics import Metrics
from otpt.metrics import evaluate as all_metrics
from otpt.runs import Run, score_run

pytestmark = pytest.mark.slow


def by_the_classifier(count: int, method: str, **options: object) -> np.ndarray:
    clf = Classifier(backbone(), recipe=RECIPE, **options).set_classes(NAMES)
    answers = clf.stream([image(i) for i in range(count)], [method], workers=0)
    return np.stack([answer[method].probabilities for answer in answers])


def close(found: Metrics, expected: Metrics) -> None:
    for name, value in expected.as_dict().items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-8), name


@pytest.mark.equality
@pytest.mark.parametrize("official", [False, True])
def test_rows_and_metrics_are_those_of_the_classifier(tmp_path: Path, official: bool) -> None:
    result = evaluate(dataset(10), backbone(), settings(official_precision=official), out=tmp_path / "run")
    labels = np.arange(10) % len(NAMES)
    found = rows(tmp_path / "run")
    assert sorted(row["method"] for row in found) == sorted(METHODS * 10)
    for score in result.scores:
        p = by_the_classifier(10, score.method, official_precision=official)
        close(score.metrics, all_metrics(p, labels))
        for bins, side in [(15, "right"), (100, "right"), (7, "left"), (100, "left"), (1, "right")]:
            again = next(s for s in score_run(result.run, bins=bins, side=side) if s.method == score.method)
            close(again.metrics, all_metrics(p, labels, n_bins=bins, side=side))
        for i, row in enumerate(row for row in found if row["method"] == score.method):
            assert row["id"] == f"p/{i}"
            assert stratified_order(dataset(10))[row["index"]] == i
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
        (score,) = score_run(result.run, side=side)
        close(score.metrics, all_metrics(p, np.array([row["label"] for row in found]), side=side))


@pytest.mark.equality
def test_nothing_depends_on_threads_batches_or_shards(tmp_path: Path) -> None:
    evaluate(dataset(9), backbone(), settings(), out=tmp_path / "one")
    torch.set_num_threads(3)
    evaluate(dataset(9), backbone(), settings(), out=tmp_path / "three")
    assert files(tmp_path / "one") == files(tmp_path / "three")
    for size in (1, 9, 50):
        evaluate(dataset(9), backbone(), settings(shard_size=size), out=tmp_path / f"size-{size}")
        for name in ("metrics.json", "tiny/metrics-seed-0.json"):
            assert (tmp_path / f"size-{size}" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


@pytest.mark.equality
def test_order_does_not_matter(tmp_path: Path) -> None:
    order = [4, 0, 6, 2, 5, 1, 3]
    evaluate(dataset(7), backbone(), settings(), out=tmp_path / "straight")
    mixed = dataset(images=[image(i) for i in order])
    evaluate(mixed, backbone(), settings(shard_size=3), out=tmp_path / "mixed")
    columns = ["method", "prediction", "confidence", "entropy", "top_probabilities", "mean_cosine"]
    tables = [rows(tmp_path / run) for run in ("straight", "mixed")]
    straight, other = ({(image_number(r), r["method"]): [r[c] for c in columns] for r in t} for t in tables)
    assert {(order[index], method): row for (index, method), row in other.items()} == straight


@pytest.mark.equality
def test_metrics_do_not_depend_on_order_to_the_last_bit(tmp_path: Path) -> None:
    orders = [np.random.default_rng(seed).permutation(80).tolist() for seed in range(3)]
    written, sums = set(), set()
    for number, order in enumerate(orders):
        labels = [i % len(NAMES) for i in order]
        ids = [f"{number}/{i}" for i in order]  # other names: they are evaluated in another order
        data = Dataset("mixed", NAMES, ids, labels, [image(i) for i in order].__getitem__)
        evaluate(data, backbone(), settings(methods=["zero-shot"], shard_size=40), out=tmp_path / str(number))
        written.add((tmp_path / str(number) / "metrics.json").read_bytes())
        table = pq.read_table(tmp_path / str(number) / "mixed/seed-0")
        # one addition after the other; the sum() of Python 3.12 and newer compensates
        sums |= {reduce(add, table[name].to_pylist()) for name in ("entropy", "confidence", "squares")}
    assert len(written) == 1
    assert len(sums) > 3, "plain sums do depend on the order"


@pytest.mark.equality
def test_worker_processes_write_the_same_bytes(tmp_path: Path) -> None:
    job = Job(backbone_on, [small_dataset], settings(shard_size=2), tmp_path / "local", device="cpu")
    run_job(job, LocalEngine())
    several = Job(backbone_on, [small_dataset], settings(shard_size=2), tmp_path / "several", device="cpu")
    result = run_job(several, ProcessEngine(2))
    assert files(tmp_path / "several") == files(tmp_path / "local")
    assert result.unreadable == 0


@pytest.mark.equality
def test_methods_prompts_and_seeds_together_equal_each_alone(tmp_path: Path) -> None:
    prompts = ["a photo of a", "an image of [CLS] outside"]
    evaluate(dataset(4), backbone(), settings(prompts=prompts, seeds=(0, 7)), out=tmp_path / "all")
    together = rows(tmp_path / "all", seed=7)
    for prompt in prompts:
        for method in ("tpt", "zero-shot"):
            alone = settings(prompts=[prompt], methods=[method], seeds=(7,))
            folder = tmp_path / f"{prompt[:9]}-{method}"
            evaluate(dataset(4), backbone(), alone, out=folder)
            assert rows(folder, seed=7) == [r for r in together if (r["prompt"], r["method"]) == (prompt, method)]


def test_unreadable_images_are_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    images = [image(0), b"no image", image(2), tmp_path / "missing.png", image(4)]
    result = evaluate(dataset(images=images), backbone(), settings(), out=tmp_path / "run")
    assert result.unreadable == 2
    bad = [row for row in rows(tmp_path / "run") if row["error"]]
    assert {image_number(row) for row in bad} == {1, 3}
    assert len(bad) == 2 * len(METHODS)
    assert "missing.png" in bad[-1]["error"]
    assert all(row["confidence"] is None and row["top_classes"] is None for row in bad)
    good = [0, 2, 4]
    score = next(s for s in result.scores if s.method == "o-tpt")
    close(score.metrics, all_metrics(by_the_classifier(5, "o-tpt")[good], np.array(good)))
    assert score.unreadable == 2
    nothing = evaluate(dataset(images=[b"x", b"y"]), backbone(), settings(), out=tmp_path / "nothing")
    assert [s.metrics for s in nothing.scores] == [None] * len(METHODS)
    assert json.loads((tmp_path / "nothing/metrics.json").read_text())["averages"] == []


def test_whatever_a_source_raises_is_recorded(tmp_path: Path) -> None:
    def source(index: int) -> object:
        if index == 1:
            raise ConnectionResetError("the store went away")
        return image(index)

    data = Dataset("own", NAMES, ["a", "b", "c"], [0, 1, 2], source)
    result = evaluate(data, backbone(), settings(methods=["zero-shot"]), out=tmp_path / "run")
    ((where, reason),) = result.unreadable_images.items()
    assert where == ("own", "b")
    assert reason == "Cannot get the image 'b' of 'own' (ConnectionResetError: the store went away)."
    assert result.scores[0].metrics.images == 2


def test_a_damaged_image_of_a_hugging_face_set_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("datasets")
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=["cat", "dog"])})
    images = [{"bytes": jpeg((200, 90, 9)), "path": None}, {"bytes": b"junk", "path": None}]
    table = library.Dataset.from_dict({"image": images, "label": [0, 1]}, features=features)
    monkeypatch.setattr(library, "load_dataset", lambda *_, **__: table)
    result = evaluate(load_dataset("hf:x"), backbone(), settings(methods=["zero-shot"]), out=tmp_path / "run")
    assert list(result.unreadable_images) == [("hf:x", "test/1")]
    assert result.scores[0].metrics.images == 1


@pytest.mark.parametrize("method", ["zero-shot", "tda"])
def test_a_file_name_that_is_not_utf_8_is_refused_before_anything_is_made(tmp_path: Path, method: str) -> None:
    data = Dataset("own", NAMES[:2], ["a/1.png", "a/\udcff.png"], [0, 1], [image(0), image(1)].__getitem__)
    with pytest.raises(OtptError, match=r"The image 'a/.*udcff.png' of 'own' has a name that is not UTF-8 text"):
        evaluate(data, backbone(), settings(methods=[method]), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.equality
def test_shards_with_unreadable_images_are_recomputed_when_asked(tmp_path: Path) -> None:
    whole = [image(i) for i in range(7)]
    chosen = settings(methods=["zero-shot", "o-tpt"], shard_size=2, seeds=(0, 1))
    evaluate(dataset(images=whole), backbone(), chosen, out=tmp_path / "never")
    torn = list(whole)
    torn[stratified_order(dataset(7))[3]] = b"torn"  # in the second shard
    first = evaluate(dataset(images=torn), backbone(), chosen, out=tmp_path / "run")
    assert first.unreadable == 1
    assert evaluate(dataset(images=whole), backbone(), chosen, out=tmp_path / "run").unreadable == 1
    # a run of another configuration is refused before anything is taken away
    before = files(tmp_path / "run")
    other = settings(methods=["zero-shot"], shard_size=3, seeds=(0, 1))
    with pytest.raises(OtptError, match="another configuration"):
        evaluate(dataset(images=whole), backbone(), other, out=tmp_path / "run", retry_unreadable=True)
    assert files(tmp_path / "run") == before
    untouched = shard(tmp_path / "run", "o-tpt", 0, 2)
    time = untouched.stat().st_mtime_ns
    again = evaluate(dataset(images=whole), backbone(), chosen, out=tmp_path / "run", retry_unreadable=True)
    assert (again.unreadable, untouched.stat().st_mtime_ns) == (0, time)
    assert files(tmp_path / "run") == files(tmp_path / "never")


def test_the_configuration_tells_everything(tmp_path: Path) -> None:
    result = evaluate(dataset(3), backbone(), settings(seeds=(1,), limit=2), out=tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["backbone"]["fingerprint"] == backbone().fingerprint
    assert config["methods"]["o-tpt"]["objectives"]["orthogonality"] == {"fine-grained": 18.0, "shift": 2.0}
    assert list(config["methods"]) == list(METHODS)
    assert (config["numbers"]["shard_size"], config["versions"]["torch"]) == (4, torch.__version__.split("+")[0])
    (only,) = config["datasets"]
    assert (only["family"], only["classes"]) == ("fine-grained", list(NAMES))
    assert [column["method"] for column in only["columns"]] == list(METHODS)
    column = only["columns"][2]
    assert (column["images"], column["views"]) == ({"1": 2}, RECIPE.key)
    assert column["prompt"] == {"name": "a photo of a", "words": "a photo of a", "tokens": None, "vectors": None}
    assert Run(tmp_path / "run").items() == result.run.items()


@pytest.mark.equality
def test_data_sets_decide_their_own_recipe(tmp_path: Path) -> None:
    one, two = dataset(3), dataset(3, name="emoji/shift")
    two.family, two.augmix, two.prompt = "shift", False, "an example of"
    evaluate([one, two], backbone(), settings(methods=["o-tpt"]), out=tmp_path / "run")
    configs = json.loads((tmp_path / "run/config.json").read_text())["datasets"]
    assert [c["folder"] for c in configs] == ["tiny", "emoji-shift"]
    assert ["augmix=on" in c["columns"][0]["views"] for c in configs] == [True, False]
    (row,) = (row for row in rows(tmp_path / "run", name="emoji-shift") if row["id"] == "p/0")
    clf = Classifier(backbone(), "o-tpt", family="shift", recipe=RECIPE.__class__(n_views=12, augmix=False))
    expected = clf.set_classes(NAMES, "an example of").predict(image(0))
    assert (row["prompt"], row["confidence"]) == ("an example of", expected.confidence)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": ["o-tpp"]}, "Unknown method 'o-tpp'"),
        ({"methods": []}, "No method was given"),
        ({"seeds": [1, 1]}, "seed 1 is given twice"),
        ({"seeds": []}, "No seed was given"),
        ({"prompts": ["a photo of a", Prompt("a_photo of a")]}, "prompt 'a photo of a' is given twice"),
        ({"family": "medical"}, "Unknown family"),
        ({"limit": 0}, "The limit is 0; expected 1 or more"),
        ({"shard_size": 0}, "The shard size is 0"),
        ({"bins": 101}, "from 1 to 100"),
        ({"side": "middle"}, "expected side 'right'"),
        ({"features": "int8"}, "Unknown type of features"),
    ],
)
def test_settings_that_cannot_be_used(changes: dict[str, object], words: str) -> None:
    with pytest.raises(OtptError, match=words):
        settings(**changes)


def test_two_data_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="data set 'tiny' is given twice"):
        evaluate([dataset(2), dataset(3)], backbone(), settings(), out=tmp_path / "run")
