"""Tables in the paper's layouts: their numbers against ``otpt metrics``, pandas and plain numpy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from oracles.command import run
from oracles.runs.simulated_runs import simulate_run, simulated_dataset, simulated_output
from sklearn.metrics import roc_auc_score

from otpt import OtptError
from otpt.evaluation import Settings
from otpt.methods import Method, get_method
from otpt.metrics import bootstrap
from otpt.report import ResultKey, open_results
from otpt.report.papers.paper import paper_table
from otpt.report.tables.building import Choice, build_tables, guess_backbone
from otpt.report.tables.formats import FORMATS, render
from otpt.report.tables.layouts import LAYOUTS
from otpt.report.tables.table import Table

pytestmark = pytest.mark.slow

METHODS = ("zero-shot", "o-tpt", "tpt", "c-tpt")
SETS = [simulated_dataset(name, 5, 30) for name in ("cars", "own", "flowers102", "dtd")]
PROMPTS = ("a photo of a", "an example of")
PROMPT = PROMPTS[0]


def named(method: str, name: str) -> Method:
    return replace(get_method(method), name=name)


SPECIAL = [
    *("tpt", "o-tpt", "o-tpt-rows", "o-tpt+c-tpt"),
    *(named("tpt", name) for name in ("coop+tpt", "maple+tpt", "maple+c-tpt", "baple", "fpt", "promptsmooth")),
    *(named("o-tpt", f"{name}+o-tpt") for name in ("coop", "maple", "baple", "fpt", "promptsmooth")),
]


def settings(**changes: object) -> Settings:
    return Settings(**{"methods": METHODS, "shard_size": 16, **changes})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    shifts = [simulated_dataset(name, 5, 20) for name in ("imagenet-r", "imagenet-a")]
    clinic = [simulated_dataset(name, 3, 20) for name in ("kather-500", "covid", "isic2018")]
    return {
        "main": simulate_run(folder / "main", SETS, settings()),
        "seeds": simulate_run(folder / "seeds", SETS[:3], settings(seeds=(0, 1, 2))),
        "prompts": simulate_run(folder / "prompts", SETS[:2], settings(prompts=PROMPTS)),
        "special": simulate_run(folder / "special", SETS[2:], settings(methods=SPECIAL)),
        "shifts": simulate_run(folder / "shifts", [*shifts, SETS[0]], settings()),
        "medical": simulate_run(folder / "medical", clinic, settings(methods=SPECIAL)),
    }


RUN_OF = {"shifts": "shifts", "seeds": "seeds", "prompts": "prompts", "medical": "medical"} | dict.fromkeys(
    ("coop", "maple", "householder", "combination"), "special"
)


def frame(capsys: pytest.CaptureFixture[str], folder: Path) -> pd.DataFrame:
    return pd.DataFrame(json.loads(run(capsys, "metrics", folder, "--json")[1])["scores"])


def values(table: Table, metric: str) -> pd.DataFrame:
    """The table as pandas would pivot it: methods down, columns across."""
    lines = {line.method: [entry.value for entry in line.entries] for line in table.lines if line.metric == metric}
    return pd.DataFrame.from_dict(lines, orient="index", columns=[column.key for column in table.columns])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_in_every_format(
    layout: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs[RUN_OF.get(layout, "main")]
    for form in FORMATS:
        code, out, err = run(
            capsys, "table", folder, "--layout", layout, "--paper-backbone", "ViT-B/16", "--format", form
        )
        assert (code, err) == (0, "")
        assert out.strip()
    tables = json.loads(out)
    assert all(table["layout"] == layout for table in tables)
    file = tmp_path / "table.tex"
    assert run(capsys, "table", folder, "--layout", layout, "--out", file)[:2] == (0, "")
    assert file.read_text().count(r"\begin{tabular}") == len(tables)


@pytest.mark.parametrize("layout", ["main", "sce"])
def test_numbers_are_those_of_otpt_metrics(
    layout: str, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (table,) = build_tables(open_results([runs["main"]]), layout)
    scores = frame(capsys, runs["main"])
    averages = pd.DataFrame(json.loads((runs["main"] / "metrics.json").read_text())["averages"]).set_index("method")
    assert [(c.key, c.title) for c in table.columns] == [
        ("dtd", "DTD"), ("flowers102", "FLW"), ("cars", "Car"), ("own", "own"), ("average", "Avg"),
    ]  # fmt: skip
    for metric in LAYOUTS[layout].metrics:
        found = values(table, metric)
        assert list(found.index) == ["zero-shot", "tpt", "c-tpt", "o-tpt"]
        expected = 100.0 * scores.pivot(index="method", columns="dataset", values=metric)
        pd.testing.assert_frame_equal(
            found.drop(columns="average").sort_index().sort_index(axis=1),
            expected.sort_index().sort_index(axis=1),
            check_names=False,
            check_exact=True,
        )
        assert found["average"].to_dict() == (100.0 * averages[metric]).to_dict()
        best = found.round(2).eq(found.round(2).agg("max" if metric == "accuracy" else "min"))
        marked = {line.method: [entry.best for entry in line.entries] for line in table.lines if line.metric == metric}
        assert {method: list(row) for method, row in best.iterrows()} == marked


def test_deviation_over_seeds(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    results = open_results([runs["seeds"]])
    scores = frame(capsys, runs["seeds"])
    for metric in ("accuracy", "ece"):
        by_seed = 100 * scores.pivot_table(index=["method", "dataset"], columns="seed", values=metric)
        of_average = by_seed.groupby("method").mean()
        (main,) = build_tables(results, "main")
        (spread,) = build_tables(results, "seeds")
        for method in METHODS:
            deviations = by_seed.loc[method].std(axis=1, ddof=1)
            for dataset in results.datasets:
                entry = main.entry(method, metric, dataset)
                assert entry.value == pytest.approx(by_seed.loc[(method, dataset)].mean())
                assert entry.deviation == pytest.approx(deviations[dataset], abs=1e-10)
                found = spread.entry(method, f"{metric}_deviation", dataset)
                assert found.value == pytest.approx(deviations[dataset], abs=1e-10)
            average = main.entry(method, metric, "average")
            assert average.deviation == pytest.approx(of_average.loc[method].std(ddof=1), abs=1e-10)
            found = spread.entry(method, f"{metric}_deviation", "average")
            assert found.value == pytest.approx(deviations.mean(), abs=1e-10)
    one = open_results([runs["seeds"]], seeds=[2])
    assert (
        build_tables(one, "main")[0].entry("tpt", "ece", "dtd" if "dtd" in one.datasets else "cars").deviation is None
    )
    with pytest.raises(OtptError, match="'seeds' needs runs with two or more seeds"):
        build_tables(one, "seeds")


def test_the_papers_numbers_stand_beside(runs: dict[str, Path]) -> None:
    (table,) = build_tables(open_results([runs["main"]]), "main", Choice(paper="ViT-B/16"))
    assert table.paper == 2
    entry = table.entry("o-tpt", "ece", "dtd")
    assert entry.paper == 7.88
    assert entry.difference == entry.value - 7.88
    assert table.entry("o-tpt", "ece", "own").paper is None
    assert table.entry("o-tpt", "ece", "average").paper is None, "the paper has no number of 'own'"
    printed = table.entry("zero-shot", "ece", "printed")
    assert (printed.paper, printed.value, printed.wrong) == (4.43, None, True)
    assert not table.entry("o-tpt", "ece", "printed").wrong
    assert [note for note in table.notes if "4.43" in note] == [
        "! Table 2 prints 4.43 as average ECE of Zero-shot; the mean of its row is 5.02."
    ]
    three = Choice(paper="RN50", datasets=["dtd", "flowers102", "cars"])
    (table,) = build_tables(open_results([runs["main"]]), "main", three)
    assert table.paper == 3
    assert table.entry("c-tpt", "accuracy", "average").paper == pytest.approx((42.2 + 65.2 + 56.5) / 3)
    (table,) = build_tables(open_results([runs["main"]]), "sce", three)
    assert table.entry("tpt", "sce", "cars").paper == 0.24
    (table,) = build_tables(open_results([runs["seeds"]]), "seeds", Choice(paper="ViT-B/16"))
    assert table.entry("o-tpt", "ece_deviation", "cars").paper == 0.10


def test_other_prompts(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    results = open_results([runs["prompts"]])
    scores = frame(capsys, runs["prompts"]).set_index(["prompt", "method", "dataset"])
    tables = build_tables(results, "prompts", Choice(paper="RN50"))
    assert [(table.title, table.paper) for table in tables] == [
        ("Other prompts: 'a photo of a'", None),
        ("Other prompts: 'an example of'", 15),
    ]
    for prompt, table in zip(PROMPTS, tables, strict=True):
        for method in METHODS:
            for dataset in ("cars", "own"):
                found = table.entry(method, "ece", dataset).value
                assert found == 100.0 * scores.loc[(prompt, method, dataset), "ece"]
    assert tables[1].entry("c-tpt", "ece", "cars").paper == 2.05
    (main,) = build_tables(results, "main")  # the paper's prompt, since there are two
    assert main.entry("tpt", "ece", "own").value == tables[0].entry("tpt", "ece", "own").value
    (main,) = build_tables(results, "main", Choice(prompt=PROMPTS[1], paper="ViT-B/16"))
    assert main.entry("tpt", "ece", "own").value == tables[1].entry("tpt", "ece", "own").value
    assert "The paper's prompt is 'a photo of a'." in main.notes


def test_groups(runs: dict[str, Path]) -> None:
    tables = build_tables(open_results([runs["main"]]), "groups", Choice(datasets=["flowers102"], paper="ViT-B/16"))
    rows = pq.read_table(runs["main"] / "flowers102/seed-0").to_pandas()
    cosine = {name: own.sort_values("index")["mean_cosine"].to_numpy() for name, own in rows.groupby("method")}
    thresholds = [np.median(cosine["tpt"]), cosine["zero-shot"].mean()]
    assert len(tables) == 2
    for table, threshold in zip(tables, thresholds, strict=True):
        above = cosine["tpt"] > threshold
        assert f"{above.sum()} above and {(~above).sum()} below" in table.notes[-1]
        for method, own in rows.sort_values("index").groupby("method"):
            for column, mask in (("flowers102:group 1", above), ("flowers102:group 2", ~above),
                                 ("flowers102", above | ~above)):  # fmt: skip
                part = own[mask]
                assert table.entry(method, "accuracy", column).value == pytest.approx(100 * part["correct"].mean())
                bins = np.ceil(20 * part["confidence"].to_numpy()).astype(int)
                gaps = (part["confidence"] - part["correct"]).groupby(bins).sum().abs().sum() / len(part)
                assert table.entry(method, "ece", column).value == pytest.approx(100 * gaps)
        assert table.entry("c-tpt", "ece", "flowers102:group 1").paper == 6.04
        assert table.entry("c-tpt", "ece", "flowers102").paper == paper_table(1).value("c-tpt", "ece", "flowers102")


def test_groups_need_tpt_and_an_initial_value(tmp_path: Path) -> None:
    only = simulate_run(tmp_path / "only", SETS[:1], settings(methods=["tpt", "o-tpt"]))
    (table,) = build_tables(open_results([only]), "groups")
    assert "at its median" in table.title
    assert "no split at the initial value" in table.notes[0]
    without = simulate_run(tmp_path / "without", SETS[:1], settings(methods=["o-tpt"]))
    with pytest.raises(OtptError, match="'tpt', which the runs do not hold"):
        build_tables(open_results([without]), "groups")


def test_intervals_are_those_of_the_metrics(runs: dict[str, Path]) -> None:
    results = open_results([runs["main"]])
    choice = Choice(datasets=["dtd", "own"], methods=["tpt"], level=0.9)
    (table,) = build_tables(results, "main", choice)
    rows = results.rows(ResultKey("dtd", 0, PROMPT, "tpt"))
    for metric in ("accuracy", "ece"):
        expected = bootstrap(metric, rows.confidences, rows.correct, level=0.9)
        entry = table.entry("tpt", metric, "dtd")
        assert (entry.low, entry.high) == pytest.approx((100 * expected.low, 100 * expected.high))
        average = table.entry("tpt", metric, "average")
        assert average.low < average.value < average.high or metric == "ece"
        single = [table.entry("tpt", metric, name) for name in ("dtd", "own")]
        assert average.high - average.low < max(e.high - e.low for e in single), "two sets are surer than one"
    (table,) = build_tables(results, "sce", choice)
    data = SETS[3]
    p = [simulated_output(data, i, (PROMPT, "tpt"), 0).probabilities for i in range(len(data))]
    expected = bootstrap("sce", np.array(p), np.array(data.labels), level=0.9)
    entry = table.entry("tpt", "sce", "dtd")
    assert (entry.low, entry.high) == pytest.approx((100 * expected.low, 100 * expected.high), rel=1e-3)


def test_metrics_by_name(runs: dict[str, Path]) -> None:
    results = open_results([runs["main"]])
    choice = Choice(datasets=["dtd"], methods=["tpt", "o-tpt"], metrics=["debiased_ece", "auroc"], level=0.9)
    (table,) = build_tables(results, "main", choice)
    rows = {name: results.rows(ResultKey("dtd", 0, PROMPT, name)) for name in ("tpt", "o-tpt")}
    assert [(line.method, line.metric) for line in table.lines] == [(m, k) for m in rows for k in choice.metrics]
    areas = {name: roc_auc_score(own.correct, own.confidences) for name, own in rows.items()}
    for name, own in rows.items():
        entry = table.entry(name, "auroc", "dtd")
        assert entry.value == pytest.approx(100 * areas[name])
        assert entry.best == (areas[name] == max(areas.values())), "higher is better"
        expected = bootstrap("auroc", own.confidences, own.correct, level=0.9)
        assert (entry.low, entry.high) == pytest.approx((100 * expected.low, 100 * expected.high))
    assert "AUROC" in render([table], "terminal")
    with pytest.raises(OtptError, match="Unknown metric of a table 'nll'"):
        build_tables(results, "main", Choice(metrics=["nll"]))
    with pytest.raises(OtptError, match="The layout 'groups' has accuracy and ECE only"):
        build_tables(results, "groups", Choice(metrics=["aurc"]))


def test_layouts_take_methods_by_name(runs: dict[str, Path]) -> None:
    special = open_results([runs["special"]])
    for layout, methods, number in (
        ("coop", ["coop+tpt", "coop+o-tpt"], 6),
        ("maple", ["maple+tpt", "maple+o-tpt", "maple+c-tpt"], 7),
        ("householder", ["o-tpt-rows", "o-tpt"], 8),
        ("combination", ["o-tpt", "o-tpt+c-tpt"], 16),
    ):
        (table,) = build_tables(special, layout, Choice(paper="ViT-B/16"))
        assert list(dict.fromkeys(line.method for line in table.lines)) == methods
        assert table.paper == number
        assert table.entry(methods[0], "ece", "dtd").paper == paper_table(number).value(methods[0], "ece", "dtd")
    tables = build_tables(open_results([runs["medical"]]), "medical", Choice(paper="ViT-B/16"))
    shown = [(t.paper, [c.key for c in t.columns], [line.method for line in t.lines[::2]]) for t in tables]
    assert shown == [
        (17, ["covid"], ["baple", "baple+o-tpt"]),
        (18, ["isic2018"], ["fpt", "fpt+o-tpt"]),
        (19, ["kather-500"], ["promptsmooth", "promptsmooth+o-tpt"]),
    ]
    shifts = open_results([runs["shifts"]])
    (table,) = build_tables(shifts, "shifts")
    assert [column.key for column in table.columns] == ["imagenet-a", "imagenet-r", "average"]
    (table,) = build_tables(shifts, "main")
    assert [column.key for column in table.columns] == ["cars", "average"]


BAD = {
    ("--layout", "man"): "Unknown layout 'man'. Did you mean: main",
    ("--layout", "coop"): "hold no method of the layout 'coop' (coop+tpt, coop+c-tpt, coop+o-tpt); they hold",
    ("--layout", "shifts"): "hold no distribution shift, which the layout 'shifts' shows",
    ("--layout", "seeds"): "needs runs with two or more seeds",
    ("--layout", "medical"): "hold no method of the layout 'medical'",
    ("--methods", "o-tptt"): "Unknown method 'o-tptt'. Did you mean: o-tpt",
    ("--datasets", "dtt"): "Unknown data set 'dtt'. Did you mean: dtd",
    ("--prompt", "an image"): "Unknown prompt 'an image'",
    ("--seeds", "4"): "No run has the seed 4; there are 0",
    ("--bins", "101"): "expected bins as an integer from 1 to 100, but got 101",
    ("--intervals", "95"): "expected level between 0 and 1, both excluded, but got 95.0; such as 0.95",
    ("--paper",): "has no numbers of the backbone 'tiny-vit'; choose whose to show with --paper-backbone ViT-B/16",
    ("--out", "table.doc"): "'table.doc' has an unknown suffix",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_bad_input(options: tuple[str, ...], runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "table", runs["main"], *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert BAD[options] in err


def test_the_backbone_is_guessed(runs: dict[str, Path], tmp_path: Path) -> None:
    path = simulate_run(tmp_path / "run", SETS[:1], settings(), items=0)
    config = json.loads((path / "config.json").read_text())
    del config["checksum"]  # as in runs of earlier versions
    for architecture, expected in {"ViT-B-16-quickgelu": "ViT-B/16", "ViT-B-16": "ViT-B/16", "RN50": "RN50",
                                   "RN50-quickgelu": "RN50", "RN50x4": None, "ViT-B-32": None}.items():  # fmt: skip
        config["backbone"]["architecture"] = architecture
        (path / "config.json").write_text(json.dumps(config))
        assert guess_backbone(open_results([path])) == expected
