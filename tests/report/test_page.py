"""The page: one file, every number of the results, nothing that a name could run."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt import OtptError
from otpt.backbones import load_backbone
from otpt.data import Dataset, load_dataset
from otpt.evaluation import Evaluation as Settings
from otpt.evaluation import evaluate
from otpt.images import open_image
from otpt.report import Results, build_tables, open_models, open_results
from otpt.report.page import make_page, write_page
from otpt.report.page.images import choose_images, collect_answers

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.fixture(scope="module")
def page(results: Results) -> str:
    frame = results.frame[(results.frame["dataset"] != "flowers102") & results.frame["method"].isin(["tpt", "o-tpt"])]
    return make_page(results.narrow(frame), title="<Title> & more", command="otpt report 'my runs' --title x")


def rows_of(page: str, table: str) -> list[list[str]]:
    body = re.search(rf'id="{table}".*?<tbody>(.*?)</tbody>', page, re.DOTALL)[1]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    cells = [re.findall(r"<t[dh].*?>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(re.sub(r"<.*?>", "", cell)).strip() for cell in row] for row in cells]


def test_numbers_are_those_of_the_tables(page: str, results: Results) -> None:
    (table,) = build_tables(results, "plain", metrics=["accuracy", "ece"], datasets=["dtd", "own"])
    for row in rows_of(page, "numbers"):
        cell = table.cell(dataset=row[0], method=row[1], metric="ece")
        assert row[4] == f"{cell['value']:.2f} ± {cell['deviation']:.2f}"
    averages = {row[0]: row[1] for row in rows_of(page, "averages")}
    for method, shown in averages.items():
        assert shown == f"{table.cell(dataset='average', method=method, metric='accuracy')['value']:.2f}"


def test_one_file_that_loads_nothing(page: str, tmp_path: Path) -> None:
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1] for tag in ("style", "script"))
    for text in (style, script):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in page
    assert "url(" not in style
    figures = re.findall(r"<figure\b.*?</figure>", page, re.DOTALL)
    assert figures
    assert all(re.search(r'<img [^>]*src="data:image/png', figure) for figure in figures)
    assert "<h1>&lt;Title&gt; &amp; more</h1>" in page
    write_page(tmp_path / "page.html", page)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page


def test_names_are_escaped(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    plain = simulated_dataset("dtd", 3, 12)
    data = Dataset("dtd", [name, "b", "c"], ids=plain.ids, labels=plain.labels, images=lambda index: b"")
    folder = simulate_run(tmp_path / "run", [data], Settings(methods=("zero-shot", "tpt")))
    page = make_page(open_results([folder]), command=f"otpt '{name}")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


@pytest.mark.slow
def test_several_models_and_sweeps(opened: dict[str, Results], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otpt.report.page._MAX_DIAGRAMS", 1)
    settings = Settings(methods=("zero-shot", "tpt"))
    data = [simulated_dataset(name, 5, 20) for name in ("dtd", "pets")]
    folders = [simulate_run(tmp_path / name, data, settings, model=f"{name}/openai") for name in ("RN50", "RN101")]
    page = make_page(open_models(folders), images=0)
    assert page.count("<figure>") == 4 + 1  # the first is the overview
    assert len(rows_of(page, "models")) == 2
    assert len(rows_of(page, "matrix")) == 4
    sweep = opened["sweep"].narrow(opened["sweep"].select(dataset="dtd"))
    assert make_page(sweep, images=0).count('class="chart"') == 2


def test_images_on_which_methods_disagree(results: Results) -> None:
    rows = {m: results.rows(results.first_key("dtd", m)) for m in ("zero-shot", "tpt", "o-tpt")}
    classes = results.configs_of("dtd")[0].classes
    disagreements, mistakes = choose_images(collect_answers(rows), classes, 4)
    scores = np.zeros(len(rows["tpt"]))
    for a, b in itertools.combinations(rows.values(), 2):
        least = np.minimum(a.confidences, b.confidences)
        scores = np.maximum(scores, np.where(a.predictions != b.predictions, least, 0))
    order = np.argsort(-scores, kind="stable")[:4]
    assert [card.name for card in disagreements] == [rows["tpt"].ids[i] for i in order if scores[i] > 0]
    assert all(not all(answer.correct for answer in card.answers) for card in mistakes)


@pytest.fixture(scope="module")
def mislabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a folder whose "pizza" is another drawing, so that every image is a mistake."""
    folder = tmp_path_factory.mktemp("mislabelled")
    drawings = load_dataset("emoji/food")
    for name, index in (("lemon", drawings.labels.index(drawings.class_names.index("pizza"))), ("pizza", 0)):
        (folder / "images" / name).mkdir(parents=True)
        open_image(drawings[index].source).save(folder / "images" / name / "drawing.png")
    settings = Settings(methods=("zero-shot",))
    evaluate(
        [load_dataset(str(folder / "images"))], load_backbone("pocket", device="cpu"), settings, out=folder / "run"
    )
    return folder


def test_heat_maps_of_mistakes(mislabelled: Path) -> None:
    results = open_results([mislabelled / "run"])
    page = make_page(results, images=0, explain=1)
    rows = results.rows(results.keys_of()[0])
    wrong = np.where(rows.correct, 0, rows.confidences).argmax()
    (shown,) = re.findall(r'alt="Heat map of (.*?)"', page)
    assert shown == results.configs_of("images")[0].classes[rows.predictions[wrong]]
    assert page.count('<img src="data:image/jpeg') == 2
    assert "&gt; 99 %<" in page  # never 100 %


def test_heat_maps_need_images(mislabelled: Path, results: Results, tmp_path: Path) -> None:
    run = shutil.copytree(mislabelled / "run", tmp_path / "run")
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace(str(mislabelled / "images"), str(tmp_path / "gone")))
    assert "gone" in make_page(open_results([run]))
    for held, explain, value in [(open_results([run]), 1, "gone"), (results, 1, "own"), (results, -1, "-1")]:
        with pytest.raises(OtptError, match=value):
            make_page(held, explain=explain)
    features = tmp_path / "features.npz"
    np.savez(
        features,
        features=np.eye(4),
        labels=[0, 1, 0, 1],
        text_features=np.eye(4)[:2],
        classes=["a", "b"],
        logit_scale=9,
    )
    settings = Settings(methods=("zero-shot",))
    evaluate([load_dataset(str(features))], None, settings, out=tmp_path / "of-features")
    with pytest.raises(OtptError, match="features"):
        make_page(open_results([tmp_path / "of-features"]), explain=1)


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_in_a_browser(page: str, tmp_path: Path) -> None:
    """It sorts, switches metric and colours, opens data sets, and fits a narrow window."""
    script = """
addEventListener("load", () => {
  const column = (id, k) => [...document.querySelectorAll(`#${id} tbody tr`)].map((r) => r.cells[k].textContent.trim());
  const found = {};
  document.querySelectorAll("#averages thead button")[2].click();
  found.sorted = column("averages", 2);
  const metric = document.getElementById("metric");
  metric.value = "accuracy"; metric.dispatchEvent(new Event("change"));
  found.accuracy = column("matrix", 1);
  const ink = () => getComputedStyle(document.body).color;
  found.inks = [ink()]; document.getElementById("theme").click(); found.inks.push(ink());
  found.open = document.getElementById("dataset-1").open;
  found.wide = document.documentElement.scrollWidth - innerWidth;
  const shown = { id: "found", textContent: JSON.stringify(found) };
  document.body.append(Object.assign(document.createElement("pre"), shown));
});"""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    (tmp_path / "page.html").write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=4000", "--window-size=400,900", "--dump-dom"]
    done = subprocess.run(
        [*command, (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
    assert [float(x) for x in found["sorted"]] == sorted(float(x) for x in found["sorted"])
    assert found["accuracy"] != found["sorted"]
    assert found["inks"][0] != found["inks"][1]
    assert found["open"]
    assert found["wide"] <= 100
    assert "CONSOLE" not in done.stderr
