"""Run folders read as results: the same numbers as ``otpt metrics``, and only runs that go together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import simulated_runs
from oracles.command import run
from simulated_runs import simulate_run, simulated_dataset

from otpt import OtptError
from otpt.evaluation import Run, Settings
from otpt.evaluation.rows import PartRows
from otpt.methods import get_method
from otpt.report import Cell, open_results
from otpt.views import ViewRecipe

METHODS = ("zero-shot", "tpt", "o-tpt")
DTD, OWN = simulated_dataset("dtd", 6, 22), simulated_dataset("own", 4, 9)


def settings(**changes: object) -> Settings:
    return Settings(**{"methods": METHODS, "part_size": 8, "bins": 10, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = settings(prompts=["a photo of a", "an example of"], seeds=(3, 1))
    return simulate_run(tmp_path_factory.mktemp("runs") / "both", [DTD, OWN], given)


def test_scores_are_those_of_otpt_metrics(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--bins", "7", "--side", "left"]):
        shown = json.loads(run(capsys, "metrics", folder, "--json", *options)[1])["scores"]
        chosen = {"bins": 7, "side": "left"} if options else {}
        results = open_results([folder], **chosen)
        assert [results.score(cell).as_dict() for cell in results.cells] == shown
    assert results.datasets == ("dtd", "own")
    assert (results.seeds, results.methods) == ((3, 1), METHODS)
    assert results.prompts == results.prompts_of("own") == ("a photo of a", "an example of")
    assert results.score(Cell("dtd", 0, "a photo of a", "tpt")) is None
    assert results.config_of("own")["pictures"] == 9
    assert results.partial == []


def test_rows_are_the_stored_ones(folder: Path) -> None:
    results = open_results([folder], seeds=[1])
    assert results.seeds == (1,)
    stored = pq.read_table(folder / "dtd/seed-1").to_pandas()
    for cell in results.cells:
        if cell.dataset != "dtd":
            continue
        rows = results.rows(cell)
        own = stored[(stored["prompt"] == cell.prompt) & (stored["method"] == cell.method)].sort_values("index")
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


def test_unreadable_pictures_are_left_out_and_all_probabilities_kept(tmp_path: Path) -> None:
    given = settings(methods=["tpt"], save_probabilities=True)
    made = Run(simulate_run(tmp_path / "run", [OWN], given, parts=0))
    everything = []
    for item in made.items:
        rows = PartRows(made.columns(0), 4, save_probabilities=True)
        for index in range(item.start, item.stop):
            if index == 5:
                rows.add_unreadable(index, OWN.ids[index], OWN.labels[index], "torn")
            else:
                found = simulated_runs._predictions(OWN, index, made.columns(0), 0)
                everything.append(found[0].probabilities)
                rows.add(index, OWN.ids[index], OWN.labels[index], found)
        made.write(item, rows.part())
    results = open_results([made.folder])
    read = results.rows(results.cells[0])
    assert read.indices.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    np.testing.assert_array_equal(read.all_probabilities, np.array(everything, np.float32))
    assert results.score(results.cells[0]).unreadable == 1


def test_a_run_in_progress_is_partial(tmp_path: Path) -> None:
    path = simulate_run(tmp_path / "run", [DTD, OWN], settings(), parts=4)  # dtd has three parts, own two
    results = open_results([path])
    assert [(p.done, p.all) for p in results.partial] == [(4, 5)]
    assert results.is_partial(Cell("own", 0, "a photo of a", "tpt"))
    assert not results.is_partial(Cell("dtd", 0, "a photo of a", "tpt"))
    assert len(results.rows(Cell("own", 0, "a photo of a", "tpt"))) == 8
    empty = open_results([simulate_run(tmp_path / "none", [OWN], settings(), parts=0)])
    assert empty.score(empty.cells[0]).metrics is None
    with pytest.raises(OtptError, match=r"no rows of 'own' with seed 0 yet"):
        empty.rows(empty.cells[0])


GENTLE = get_method("o-tpt").override({"lambda": 6})
OTHERS = {
    "pictures": (simulated_dataset("dtd", 6, 21), settings(methods=["c-tpt"]), "different pictures or classes"),
    "limit": (DTD, settings(methods=["c-tpt"], limit=20), r"different numbers of pictures of 'dtd', 22 and 20"),
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
        simulate_run(tmp_path / "first", [DTD], settings(), parts=0),
        simulate_run(tmp_path / "second", [data], given, parts=0),
    ]
    with pytest.raises(OtptError, match=message) as error:
        open_results(paths)
    assert "first' and" in str(error.value)
    assert "second' cannot be compared: " in str(error.value)


def test_what_is_chosen_anew_need_not_agree(tmp_path: Path) -> None:
    paths = [
        simulate_run(tmp_path / "first", [DTD], settings(seeds=(0, 1)), parts=0),
        simulate_run(tmp_path / "second", [DTD], settings(methods=["c-tpt"], bins=20, side="left"), parts=0),
    ]
    results = open_results(paths, bins=15, side="right", seeds=[0])
    assert (results.bins, results.side, results.seeds) == (15, "right", (0,))
    assert results.methods == (*METHODS, "c-tpt")
    with pytest.raises(OtptError, match="No run has the seed 7; there are 0, 1"):
        open_results(paths[:1], seeds=[7])


def test_clean_views_alone_go_with_any_views(tmp_path: Path) -> None:
    paths = [
        simulate_run(tmp_path / "first", [DTD], settings(methods=["tpt"]), parts=0),
        simulate_run(tmp_path / "second", [DTD], settings(methods=["zero-shot"]), parts=0),
    ]
    assert open_results(paths).methods == ("tpt", "zero-shot")


def test_models_must_agree(tmp_path: Path) -> None:
    first = simulate_run(tmp_path / "first", [DTD], settings(), parts=0)
    second = simulate_run(tmp_path / "second", [OWN], settings(), parts=0)
    config = json.loads((second / "config.json").read_text())
    config["backbone"] |= {"fingerprint": "another", "name": "other"}
    (second / "config.json").write_text(json.dumps(config))
    with pytest.raises(OtptError, match=r"their models differ, 'tiny-vit' and 'other'"):
        open_results([first, second])
    assert open_results([first, second], one_backbone=False).datasets == ("dtd", "own")


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=r"no run in '.*none' \(config.json is missing\)"):
        open_results([tmp_path / "none"])
    with pytest.raises(OtptError, match="No run was given"):
        open_results([])
    path = simulate_run(tmp_path / "run", [DTD], settings(), parts=0)
    with pytest.raises(OtptError, match="hold no 'best' on 'dtd'"):
        open_results([path]).rows(Cell("dtd", 0, "a photo of a", "best"))
