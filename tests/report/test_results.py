"""Run folders read as results: the same numbers as ``otpt metrics``, and only runs that go together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from oracles.command import run
from oracles.runs.simulated_runs import simulate_run, simulated_dataset, simulated_output

from otpt import OtptError
from otpt.evaluation import Settings
from otpt.methods import get_method
from otpt.report import ResultKey, open_results
from otpt.report.tables import build_tables
from otpt.runs import Run, averages, score_run
from otpt.runs.rows import ShardRows
from otpt.views import ViewRecipe

pytestmark = pytest.mark.slow

METHODS = ("zero-shot", "tpt", "o-tpt")
DTD, OWN = simulated_dataset("dtd", 6, 22), simulated_dataset("own", 4, 9)


def settings(**changes: object) -> Settings:
    return Settings(**{"methods": METHODS, "shard_size": 8, "bins": 10, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = settings(prompts=["a photo of a", "an example of"], seeds=(3, 1))
    return simulate_run(tmp_path_factory.mktemp("runs") / "both", [DTD, OWN], given)


def test_scores_are_those_of_otpt_metrics(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--bins", "7", "--side", "left"]):
        shown = json.loads(run(capsys, "metrics", folder, "--json", *options)[1])["scores"]
        chosen = {"bins": 7, "side": "left"} if options else {}
        results = open_results([folder], **chosen)
        assert [results.score(key).as_dict() for key in results.keys] == shown
    assert results.datasets == ("dtd", "own")
    assert (results.seeds, results.methods) == ((1, 3), METHODS)
    assert results.prompts == results.prompts_of("own") == ("a photo of a", "an example of")
    assert results.score(ResultKey("dtd", 0, "a photo of a", "tpt")) is None
    assert (results.images_of("own"), len(results.config_of("own")["classes"])) == (9, 4)
    assert results.partial == []


def test_rows_are_the_stored_ones(folder: Path) -> None:
    results = open_results([folder], seeds=[1])
    assert results.seeds == (1,)
    stored = pq.read_table(folder / "dtd/seed-1").to_pandas()
    for key in results.keys:
        if key.dataset != "dtd":
            continue
        rows = results.rows(key)
        own = stored[(stored["prompt"] == key.prompt) & (stored["method"] == key.method)].sort_values("index")
        assert list(rows.ids) == list(own["id"]) == list(DTD.ids)
        for name, column in (
            ("indices", "index"), ("labels", "label"), ("predictions", "prediction"), ("ranks", "rank"),
            ("confidences", "confidence"), ("probabilities", "probability"), ("entropies", "entropy"),
            ("squares", "squares"), ("mean_cosines", "mean_cosine"), ("correct", "correct"),
        ):  # fmt: skip
            np.testing.assert_array_equal(getattr(rows, name), own[column].to_numpy(), err_msg=name)
        assert rows.top_counts.tolist() == [len(each) for each in own["top_classes"]]
        np.testing.assert_array_equal(rows.top_probabilities, np.concatenate(own["top_probabilities"].to_list()))
        np.testing.assert_allclose(rows.class_sums.sum(), len(rows), atol=1e-6)
        assert rows.all_probabilities is None


def test_unreadable_images_are_left_out_and_all_probabilities_kept(tmp_path: Path) -> None:
    given = settings(methods=["tpt"], save_probabilities=True)
    made = Run(simulate_run(tmp_path / "run", [OWN], given, items=0))
    everything = []
    for item in made.items():
        (column,) = item.columns
        rows = ShardRows(column, 4, save_probabilities=True)
        for index in range(item.start, item.stop):
            if index == 5:
                rows.add_unreadable(index, OWN.ids[index], OWN.labels[index], "torn")
            else:
                found = simulated_output(OWN, index, column, 0)
                everything.append(found.probabilities)
                rows.add(index, OWN.ids[index], OWN.labels[index], found)
        made.write(rows.shard("own", 0, first=item.first, start=item.start))
    results = open_results([made.folder])
    read = results.rows(results.keys[0])
    assert read.indices.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    np.testing.assert_array_equal(read.all_probabilities, np.array(everything, np.float32))
    assert results.score(results.keys[0]).unreadable == 1


def test_a_run_in_progress_is_partial(tmp_path: Path) -> None:
    path = simulate_run(tmp_path / "run", [DTD, OWN], settings(), items=4)  # dtd has three ranges of images, own two
    results = open_results([path])
    assert [(p.done, p.all) for p in results.partial] == [(30, 31)]
    assert results.is_partial(ResultKey("own", 0, "a photo of a", "tpt"))
    assert not results.is_partial(ResultKey("dtd", 0, "a photo of a", "tpt"))
    assert len(results.rows(ResultKey("own", 0, "a photo of a", "tpt"))) == 8
    empty = open_results([simulate_run(tmp_path / "none", [OWN], settings(), items=0)])
    assert empty.score(empty.keys[0]).metrics is None
    with pytest.raises(OtptError, match=r"no rows of 'zero-shot' on 'own' with seed 0 yet; wait"):
        empty.rows(empty.keys[0])


def test_a_run_that_has_grown_unevenly(tmp_path: Path) -> None:
    """A method with another seed and more images than the others: means are over its own, and tables say so."""
    folder = simulate_run(tmp_path / "run", [DTD, OWN], settings(limit=9))
    simulate_run(folder, [DTD, OWN], settings(methods=["tpt"], seeds=(0, 4), limit=16))
    results = open_results([folder])
    assert (results.seeds_of("dtd", "tpt"), results.seeds_of("dtd", "o-tpt")) == ((0, 4), (0,))
    assert (results.images_of("dtd"), results.images_of("dtd", "o-tpt"), results.images_of("own")) == (16, 9, 9)
    assert len(results.rows(ResultKey("dtd", 0, "a photo of a", "tpt"))) == 16
    (table,) = build_tables(results, "main")
    of_seeds = [results.score(ResultKey("dtd", seed, "a photo of a", "tpt")).metrics.ece for seed in (0, 4)]
    assert table.entry("tpt", "ece", "dtd").value == pytest.approx(50 * sum(of_seeds))
    assert table.entry("o-tpt", "ece", "dtd").deviation is None
    assert table.notes == (
        "The methods have different seeds on 'dtd': zero-shot 0; tpt 0, 4; o-tpt 0.",
        "The methods have different numbers of images of 'dtd': zero-shot 9; tpt 16; o-tpt 9.",
        "The methods have different seeds on 'own': zero-shot 0; tpt 0, 4; o-tpt 0.",
    )
    scores = score_run(Run(folder))
    assert [(each.method, each.deviation is None) for each in averages(scores)] == [
        ("zero-shot", True), ("tpt", False), ("o-tpt", True),
    ]  # fmt: skip
    (table,) = build_tables(open_results([folder], seeds=[4]), "main")
    assert [line.method for line in table.lines] == ["tpt", "tpt"]


GENTLE = get_method("o-tpt").override({"lambda": 6})
OTHERS = {
    "images": (simulated_dataset("dtd", 6, 21), settings(methods=["c-tpt"]), "different images or classes"),
    "limit": (DTD, settings(methods=["c-tpt"], limit=20), r"different numbers of images of 'dtd', 22 and 20"),
    "twice": (DTD, settings(methods=["tpt"]), r"both hold 'tpt' on 'dtd' with the prompt 'a photo of a'; leave one"),
    "seeds": (DTD, settings(methods=["c-tpt"], seeds=(0, 1)), r"seeds differ, 0 and 0, 1; choose common ones"),
    "bins": (DTD, settings(methods=["c-tpt"], bins=20), r"bins differ, 10 and 20; choose with --bins"),
    "side": (DTD, settings(methods=["c-tpt"], side="left"), r"side differ, right and left; choose with --side"),
    "views": (DTD, settings(methods=["c-tpt"], recipe=ViewRecipe(n_views=8)), "their views of 'dtd' differ"),
    "rounding": (DTD, settings(methods=["c-tpt"], official_precision=True), "float16"),
    "meaning": (OWN, settings(methods=[replace(GENTLE, name="o-tpt")]), r"different things by 'o-tpt': .*18.*6"),
}  # fmt: skip


@pytest.mark.parametrize("why", OTHERS)
def test_runs_that_cannot_be_compared(why: str, tmp_path: Path) -> None:
    data, given, message = OTHERS[why]
    paths = [
        simulate_run(tmp_path / "first", [DTD], settings(), items=0),
        simulate_run(tmp_path / "second", [data], given, items=0),
    ]
    with pytest.raises(OtptError, match=message) as error:
        open_results(paths)
    assert "first' and" in str(error.value)
    assert "second' cannot be compared: " in str(error.value)


def test_what_is_chosen_anew_need_not_agree(tmp_path: Path) -> None:
    paths = [
        simulate_run(tmp_path / "first", [DTD], settings(seeds=(0, 1)), items=0),
        simulate_run(tmp_path / "second", [DTD], settings(methods=["c-tpt"], bins=20, side="left"), items=0),
    ]
    results = open_results(paths, bins=15, side="right", seeds=[0])
    assert (results.bins, results.side, results.seeds) == (15, "right", (0,))
    assert results.methods == (*METHODS, "c-tpt")
    with pytest.raises(OtptError, match="No run has the seed 7; there are 0, 1"):
        open_results(paths[:1], seeds=[7])


def test_clean_views_alone_go_with_any_views(tmp_path: Path) -> None:
    paths = [
        simulate_run(tmp_path / "first", [DTD], settings(methods=["tpt"]), items=0),
        simulate_run(tmp_path / "second", [DTD], settings(methods=["zero-shot"]), items=0),
    ]
    assert open_results(paths).methods == ("tpt", "zero-shot")


def test_models_must_agree(tmp_path: Path) -> None:
    first = simulate_run(tmp_path / "first", [DTD], settings(), items=0)
    second = simulate_run(tmp_path / "second", [OWN], settings(), items=0)
    config = json.loads((second / "config.json").read_text())
    config["backbone"] |= {"fingerprint": "another", "name": "other"}
    del config["checksum"]  # as in runs of earlier versions
    (second / "config.json").write_text(json.dumps(config))
    with pytest.raises(OtptError, match=r"their models differ, 'tiny-vit' and 'other'"):
        open_results([first, second])
    assert open_results([first, second], one_backbone=False).datasets == ("dtd", "own")


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=r"no run in '.*none' \(config.json is missing\)"):
        open_results([tmp_path / "none"])
    with pytest.raises(OtptError, match="No run was given"):
        open_results([])
    path = simulate_run(tmp_path / "run", [DTD], settings(), items=0)
    with pytest.raises(OtptError, match="hold no 'best' on 'dtd'"):
        open_results([path]).rows(ResultKey("dtd", 0, "a photo of a", "best"))
