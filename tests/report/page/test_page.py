"""The page: its numbers and commands, several models; nothing from the network, nothing hostile let through."""

from __future__ import annotations

import html
import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oracles.command import run
from oracles.pages.html_pages import Reader
from oracles.runs import simulated_runs
from oracles.runs.figure_bench import SETS, Bench
from oracles.runs.simulated_runs import simulate_run, simulated_dataset, simulated_output
from PIL import Image

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation import Settings, sweep_method
from otpt.methods import get_method
from otpt.methods.output import Output
from otpt.metrics import clopper_pearson, percent
from otpt.report import ResultKey, open_models, open_results
from otpt.report.page import content as page_content
from otpt.report.page import make_page, write_page
from otpt.report.page.diagrams import HIGH, line_chart
from otpt.report.page.images import data_uri

pytestmark = pytest.mark.slow


def test_numbers_are_those_of_the_metrics(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "report", bench.runs["main"], "-o", tmp_path / "r.html")
    assert (code, "The page is in" in out) == (0, True)
    page = Reader((tmp_path / "r.html").read_text(encoding="utf-8"))
    told = json.loads(run(capsys, "metrics", bench.runs["main"], "--json")[1])
    header, *lines = page.tables["numbers"]
    assert header[:5] == ["Data set", "Method", "Images", "Accuracy %", "ECE %"]
    assert len(lines) == len(told["scores"]) == 15
    for line, score in zip(lines, told["scores"], strict=True):
        shares = [percent(score[name]) for name in ("accuracy", "ece", "debiased_ece", "sce")]
        rest = [
            f"{score['brier']:.4f}",
            f"{score['nll']:.4f}",
            percent(score["overconfidence"]),
            percent(score["aurc"]),
        ]
        assert line == [score["dataset"], score["method"], "12", *shares, *rest]
    for line, average in zip(page.tables["averages"][1:], told["averages"], strict=True):
        assert line[:3] == [average["method"], f"{100 * average['accuracy']:.2f}", f"{100 * average['ece']:.2f}"]
    header, *rows = page.tables["matrix"]
    assert header == ["Method", *SETS, "Average"]
    ece = {(s["method"], s["dataset"]): f"{100 * s['ece']:.2f}" for s in told["scores"]}
    for row in rows:
        assert row[1:4] == [ece[row[0], dataset] for dataset in SETS]


def test_several_seeds_and_prompts(bench: Bench) -> None:
    lines = Reader(make_page(bench.results("seeds"), images=0)).tables["numbers"][1:]
    assert all(re.fullmatch(r"-?\d+\.\d\d ± \d+\.\d\d", cell) for line in lines for cell in line[3:7])
    header, *lines = Reader(make_page(bench.results("prompts"), images=0)).tables["numbers"]
    assert header[2] == "Prompt"
    assert {line[2] for line in lines} == set(bench.results("prompts").prompts)


def test_each_data_set_may_have_its_own_prompt(tmp_path: Path) -> None:
    """Then a method's numbers belong together all the same."""
    made = [simulated_dataset("one", 3, 12), simulated_dataset("two", 3, 12)]
    made[1].prompt = "a satellite photo of"
    results = open_results([simulate_run(tmp_path / "run", made, Settings(methods=("tpt", "o-tpt")))])
    page = Reader(make_page(results, images=0))
    ece = [results.score(key).metrics.ece for key in results.keys if key.method == "tpt"]
    assert page.tables["averages"][1][:2] == ["tpt", "each data set’s own"]
    assert page.tables["averages"][1][3] == f"{50 * sum(ece):.2f}"
    assert page.tables["matrix"][1][2:] == [*(f"{100 * each:.2f}" for each in ece), f"{50 * sum(ece):.2f}"]


def test_a_chart_does_not_blow_up_small_differences() -> None:
    """A fifth of a point is a twenty-fifth of the height; ten points fill it."""
    small, large = (line_chart("ECE %", ["a", "b"], values, name="x") for values in ([0.1293, 0.1313], [0.1, 0.2]))
    assert (small.low, small.high, large.low, large.high) == ("10.5", "15.5", "10.0", "20.0"), "ends of the axis"
    assert abs(small.points[0][1] - small.points[1][1]) == pytest.approx(HIGH / 25)
    assert abs(large.points[0][1] - large.points[1][1]) == pytest.approx(HIGH)


def test_several_models_side_by_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Numbers of each model as if it were alone, and their average over the data sets that both saw."""
    one, two, three = (simulated_dataset(name, classes=4, images=30) for name in ("one", "two", "three"))
    settings = Settings(methods=("tpt", "o-tpt"))
    first = simulate_run(tmp_path / "a", [one, two, three], settings, model="ViT-B-16/openai")
    second = simulate_run(tmp_path / "b", [one, two], Settings(methods=("o-tpt",), seeds=(3,)), model="RN50/openai")
    assert run(capsys, "report", first, second, "-o", tmp_path / "r.html", "--images", 0)[0] == 0
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = Reader(text)
    alone = {name: open_results([folder]) for name, folder in (("ViT-B-16/openai", first), ("RN50/openai", second))}

    def ece(model: str, method: str, dataset: str) -> float:
        (key,) = [key for key in alone[model].keys if (key.method, key.dataset) == (method, dataset)]
        return float(alone[model].score(key).metrics.ece)

    header, *rows = page.tables["models"]
    assert header == ["Method", "ViT-B-16/openai", "RN50/openai"]
    common = {model: f"{50 * (ece(model, 'o-tpt', 'one') + ece(model, 'o-tpt', 'two')):.2f}" for model in alone}
    assert ["o-tpt", common["ViT-B-16/openai"], common["RN50/openai"]] in rows
    assert [row[2] for row in rows if row[0] == "tpt"] == ["–"]
    assert "Average over the 2 data sets that all models were run on." in text
    for line in page.tables["numbers"][1:]:
        assert line[5] == f"{100 * ece(line[0], line[2], line[1]):.2f}"
    matrix = {(row[0], row[1]): row[2:] for row in page.tables["matrix"][1:]}
    assert matrix["RN50/openai", "o-tpt"][2] == "–", "not run on the third set"
    assert len([tag for tag, a in page.tags if a.get("role") == "img"]) == 2 * 3 + 2


def test_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    sets = [simulated_dataset("some", classes=3, images=9)]
    folders = [simulate_run(tmp_path / name, sets, Settings(methods=("tpt",)), model=name) for name in ("x", "y")]
    for folder in folders:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["backbone"]["name"] = "same"
        del config["checksum"]  # as in runs of earlier versions
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert list(open_models(folders)) == ["same (x)", "same (y)"]
    assert list(open_models(folders[:1])) == ["same"]
    other = [simulated_dataset("some", classes=4, images=9)]
    strange = simulate_run(tmp_path / "z", other, Settings(methods=("tpt",)), model="z")
    with pytest.raises(OtptError, match="side by side: they saw different images or classes under the name 'some'"):
        open_models([folders[0], strange])
    with pytest.raises(OtptError, match="There is no run in"):
        open_models([tmp_path / "nowhere"])
    left = simulate_run(tmp_path / "left", sets, Settings(methods=("tpt",), side="left"), model="l")
    for given in ({"bins": 15}, {"side": "left"}, {}):
        conditions = {(each.bins, each.side) for each in open_models([folders[0], left], **given).values()}
        assert conditions == {(given.get("bins", 20), given.get("side", "right"))}, "numbers side by side"
    with pytest.raises(OtptError, match="No run was given"):
        open_models([])


def test_prediction_sets_and_abstention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [1, 2, 3, 2, 0, 4]

    def output(data: Dataset, index: int, column: tuple[str, str], seed: int) -> Output:
        plain = simulated_output(data, index, column, seed)
        extras = {"set_size": float(sizes[index]), "covered": float(index < 3), "answered": float(index % 2 == 0)}
        extras["unknown"] = 0.5
        flags = ("rejected",) if index == 1 else ()
        return replace(plain, extras=extras, flags=flags) if column[1] == "tpt" else plain

    monkeypatch.setattr(simulated_runs, "simulated_output", output)
    data = simulated_dataset("some", classes=5, images=6)
    results = open_results([simulate_run(tmp_path / "run", [data], Settings(methods=("tpt", "o-tpt")))])
    header, *lines = Reader(make_page(results, images=0)).tables["sets"]
    names = ["Classes per set", "Coverage %", "Abstained %", "Accuracy of the rest %", "None of these %"]
    assert header[2:] == names
    right = int(np.sum(results.rows(results.keys[0]).correct[[0, 2, 4]]))
    rest = f"{percent(right / 3)} ({' – '.join(percent(end, 1) for end in clopper_pearson(right, 3))})".replace(
        " – ", "–"
    )
    assert lines == [["some", "tpt", "2.00", "50.00 (11.8–88.2)", "50.00", rest, "16.67"]]
    without = open_results([simulate_run(tmp_path / "other", [data], Settings(methods=("o-tpt",)))])
    assert 'id="sets"' not in make_page(without, images=0)


def test_reliability_diagrams_show_what_is_certain(bench: Bench) -> None:
    """As many intervals as filled bins; bars in steps of opacity."""
    results = bench.results()
    page = Reader(make_page(results, images=0))
    paths = [a for tag, a in page.tags if tag == "path" and a.get("class") == "interval"]
    keys = [key for key in results.keys if key.dataset == "first"]
    for key, path in zip(keys, paths, strict=False):
        confidences = results.rows(key).confidences
        filled = {math.ceil(c * results.bins) for c in confidences}
        assert str(path["d"]).count("M") == len(filled)
    levels = {str(a["class"]) for tag, a in page.tags if str(a.get("class")).startswith("accuracy level-")}
    assert "accuracy level-4" in levels
    assert levels <= {f"accuracy level-{level}" for level in (1, 2, 3, 4)}


def test_counts_side_by_side_have_one_scale(bench: Bench) -> None:
    """The fullest bin of a data set fills the height, and a label says its share; all else is in proportion."""
    results = bench.results()
    text = make_page(results, images=0)
    found = [a for tag, a in Reader(text).tags if tag == "path" and a.get("class") == "counts"]
    keys = [key for key in results.keys if key.dataset == "first"]
    fullest = []
    for key in keys:
        confidences = results.rows(key).confidences
        bins = np.bincount([math.ceil(c * results.bins) for c in confidences])
        fullest.append(bins.max() / len(confidences))
    heights = [float(str(path["transform"]).split()[3]) for path in found[: len(keys)]]
    assert heights == pytest.approx([each / max(fullest) for each in fullest], abs=1e-4)
    assert min(heights) < max(heights) == 1, "the bench has something to compare"
    assert text.count(f">{100 * max(fullest):.0f} %</text>") >= len(keys)


def test_the_command_of_the_page_has_an_option_per_line(bench: Bench) -> None:
    page = make_page(bench.results(), images=0, command="otpt report runs/a -o page.html --title 'A b' --images 0")
    assert ">otpt report runs/a -o page.html \\\n  --title &#39;A b&#39; \\\n  --images 0</code></pre>" in page


HOSTILE = ("<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "שלום <b>العربية", "long name " * 300)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    data = Dataset(
        "</title><script>alert(2)</script>",
        HOSTILE,
        ids=[f"{name}/{i}.png" for i, name in enumerate(HOSTILE * 10)],
        labels=[0, 1, 2, 3] * 10,
        images=lambda index: b"",
    )
    folder = simulate_run(tmp_path_factory.mktemp("hostile") / "run", [data], Settings(methods=("tpt", "o-tpt")))
    return make_page(open_results([folder]), title="</style><script>alert(3)</script>", command="<b>'\"", images=20)


def test_hostile_names_stay_words(hostile: str) -> None:
    page = Reader(hostile)
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{}], "one script, ours"
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert "alert(1)" in hostile, "the names are told"
    assert "alert(1)</script>" not in hostile
    assert "<bdi>שלום &lt;b&gt;العربية" in hostile


def test_nothing_comes_from_elsewhere(bench: Bench) -> None:
    text = make_page(bench.results(), root=bench.data)
    page = Reader(text)
    (policy,) = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in str(policy)
    assert not re.search(r"https?:|url\((?!#)|@import|//[a-z]", text)
    for tag, attributes in page.tags:
        for name in ("src", "href"):
            assert str(attributes.get(name) or "#").startswith(("#", "data:image/")), (tag, attributes)
    assert {tag for tag, _ in page.tags} & {"link", "iframe", "object", "form", "base"} == set()


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast(bench: Bench) -> None:
    """WCAG: 4.5 for words, 3 for what is drawn; in every theme."""
    (style,) = re.findall(r"<style>(.*?)</style>", make_page(bench.results(), images=0), re.DOTALL)
    themes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in re.findall(r"\{[^{}]*--paper:[^{}]*\}", style)]
    assert len(themes) == 4, "light, dark by choice, dark by preference, print"
    assert themes[1] == themes[2]
    for theme in themes:
        light = {name: _luminance(colour) for name, colour in theme.items()}

        def ratio(a: str, b: str, light: dict[str, float] = light) -> float:
            return (max(light[a], light[b]) + 0.05) / (min(light[a], light[b]) + 0.05)

        for ground in ("paper", "card"):
            assert min(ratio(words, ground) for words in ("ink", "muted", "accent", "good", "bad")) >= 4.5
            assert min(ratio(drawn, ground) for drawn in ("bar", "gap", "under")) >= 3
        assert ratio("ink", "notice") >= 4.5


def test_a_run_in_progress_is_marked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sets = [simulated_dataset(name, classes=3, images=10) for name in ("done", "begun", "not yet")]
    folder = simulate_run(tmp_path / "run", sets, Settings(methods=("tpt", "o-tpt"), shard_size=5), items=3)
    code, out, _ = run(capsys, "report", folder, "-o", tmp_path / "r.html")
    assert (code, "has 15 of 30 images" in out) == (0, True)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "has 15 of 30 images" in page
    lines = {line[0]: line for line in Reader(page).tables["numbers"][1:]}
    assert "partial" not in lines["done"][1]
    assert "partial" in lines["begun"][1]
    assert lines["begun"][2] == "5"
    assert lines["not yet"][3] == "–"
    nothing = simulate_run(tmp_path / "nothing", sets, Settings(methods=("tpt",)), items=0)
    assert "Nothing has been predicted yet." in make_page(open_results([nothing]))


def test_sweeps_have_their_charts(bench: Bench) -> None:
    page = make_page(bench.results("sweep"), images=0).replace("\u2068", "").replace("\u2069", "")
    results = bench.results("sweep")
    fractions = [
        results.score(ResultKey("second", 0, "a photo of a", f"o-tpt[lambda={v}]")).metrics.ece for v in (0, 2, 18)
    ]
    said = ", ".join(f"{100 * fraction:.2f} at λ={v}" for fraction, v in zip(fractions, (0, 2, 18), strict=True))
    assert f"ECE % of o-tpt on second: {said}." in page
    assert len(re.findall(r"\(axis from [−0-9.]+ to [0-9.]+\)</span></figcaption>", page)) == page.count(
        '<figure class="chart">'
    )
    assert 'id="sweeps"' not in make_page(bench.results(), images=0)


def test_a_sweep_has_charts_for_each_prompt(tmp_path: Path) -> None:
    methods = sweep_method(get_method("o-tpt"), {"lambda": ["0", "2"]})
    settings = Settings(methods=methods, prompts=["a photo of a", "an image of the"])
    folder = simulate_run(tmp_path / "run", [simulated_dataset("some", classes=3, images=20)], settings)
    results = open_results([folder])
    page = make_page(results, images=0).replace("\u2068", "").replace("\u2069", "")
    for prompt in results.prompts:
        assert f"</bdi>, “<bdi>{prompt}</bdi>”</h3>" in page
        found = (results.score(ResultKey("some", 0, prompt, f"o-tpt[lambda={v}]")).metrics.ece for v in (0, 2))
        said = ", ".join(f"{100 * ece:.2f} at λ={v}" for ece, v in zip(found, (0, 2), strict=True))
        assert f"ECE % of o-tpt on some: {said}." in page


def test_the_commands_make_the_same_run(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As the page shows them, given to a shell in another folder, they make the same rows."""
    few = ("--data", bench.data, "--backbone", bench.model, "--views", 4, "--no-cache", "--device", "cpu")
    folder = tmp_path / "the run"
    lines = [
        ("evaluate", "first", "second", "--methods", "zero-shot", "tpt", *few, "--out", folder),
        ("sweep", "first", "--set", "lambda=0,2", *few, "--out", folder),
    ]
    for line in lines:
        assert run(capsys, *line)[0] == 0
        assert run(capsys, *line)[0] == 0, "the same command again has nothing to do, and is told once"
    page = html.unescape(make_page(open_results([folder]), images=0))
    shown = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL)
    again = [shlex.split(block.replace("\\\n", "")) for block in shown]  # a shell joins the lines so
    places = {name: str(bench.data / name) for name in ("first", "second")}  # found from any folder
    assert again == [["otpt", *(places.get(str(word), str(word)) for word in line)] for line in lines]
    for _, *words in again:
        assert run(capsys, *(str(tmp_path / "again") if word == str(folder) else word for word in words))[0] == 0
    first, second = ({path.relative_to(f): path.read_bytes() for path in f.rglob("*.parquet")} for f in
                     (folder, tmp_path / "again"))  # fmt: skip
    assert len(first) == 2 * 2 + 2
    assert first == second


def test_a_run_from_python_has_no_command(bench: Bench) -> None:
    page = make_page(bench.results("changed"), images=0)
    assert "This run was made from Python, so there is no command" in page
    assert "<pre" not in page
    for words in ("orthogonality 6", "2 images", "augmix=off", "weights for shift", "“an example of (2 tokens tuned)”"):
        assert words in page, words


def test_fifteen_sets_and_seven_methods_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ("zero-shot", "tpt", "c-tpt", "o-tpt", "tpt+ts", "tpt+sals", "c-tpt+penalty")
    sets = [simulated_dataset(f"set {i}", classes=10, images=24) for i in range(15)]
    folder = simulate_run(tmp_path / "run", sets, Settings(methods=methods))
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    worst = data_uri(Image.fromarray(noise))  # nothing is harder to compress

    class Drawn:
        reason = None

        def __init__(self, *_: object) -> None: ...

        def __call__(self, index: int) -> str:
            return worst

    monkeypatch.setattr(page_content, "Thumbnails", Drawn)
    page = make_page(open_results([folder]))
    assert page.count("<figure>") == 15 * 7
    assert page.count("<img") >= 15 * 6
    assert len(page.encode()) < 5_000_000


def test_what_cannot_be_reported_is_told(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for given, message in (
        ([tmp_path / "nothing"], "There is no run in"),
        ([bench.runs["main"], "-o", tmp_path / "r.pdf"], "expected a name that ends in .html"),
        ([bench.runs["main"], "--images", "-1", "-o", tmp_path / "r.html"], "expected 0 or more"),
        ([bench.runs["main"], bench.runs["seeds"], "-o", tmp_path / "r.html"], "cannot be compared"),
        (
            [bench.runs["main"], "--bins", "0", "-o", tmp_path / "r.html"],
            "expected bins as an integer from 1 to 100, but got 0",
        ),
    ):
        code, _, err = run(capsys, "report", *given)
        assert (code, message in err) == (2, True), err
    (tmp_path / "file").write_text("x")
    with pytest.raises(OtptError, match="Cannot write"):
        write_page(tmp_path / "file" / "r.html", "x")
