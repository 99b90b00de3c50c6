"""Text from outside, in names of files, folders and classes, in every command, format and page.

Each destination has one rule, which is checked on everything that goes there: the terminal shows no control and
bidirectional characters, a spreadsheet computes nothing, HTML and SVG have no elements of names, LaTeX and Markdown no
commands.
"""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
import warnings
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import otpt as package
from otpt.bulk import RowStore
from otpt.errors import OtptError
from otpt.escapes import csv_cell, csv_name, file_name, json_text, latex, markdown, one_line, plain
from otpt.report import open_results
from otpt.runs import Run as RunFolder

from .conftest import Run

pytestmark = pytest.mark.slow

CLASSES = (
    "=HYPERLINK(1)\x1b[31m",
    "<script>alert(1)</script>",
    "$x^2$ \\input{secret} #1_2 & 50 %",
    "a|b `c` [d](javascript:e) *f*",
    "\u202egnp \x9b2J\u2028",
)
FILES = (
    "@SUM(1)\u202e.png",
    "'\"><img src=x onerror=alert(1)>.png",
    "-1+1\x1b]0;title\x07 $y$.png",
    "line\nbreak\t.png",
)
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def hidden(text: str, allowed: str = "\n") -> list[str]:
    """Characters that a terminal would obey."""
    return [ascii(letter) for letter in text if unicodedata.category(letter) in HIDDEN and letter not in allowed]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders and files with hostile names; one file is no image."""
    folder = tmp_path_factory.mktemp("photos") / "=1+1 <b>$z$ \u202e"
    for number, name in enumerate(CLASSES):
        below = folder / name.replace("/", "∕")
        below.mkdir(parents=True)
        for place, file in enumerate(FILES):
            pixels = np.random.default_rng(10 * number + place).integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(below / file)
    (folder / "bad\x1b[2J=.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def labelled(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same folder without the file that is no image."""
    folder = tmp_path_factory.mktemp("labelled") / photos.name
    for below in photos.iterdir():
        if below.is_dir():
            (folder / below.name).mkdir(parents=True)
            for file in below.iterdir():
                (folder / below.name / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def options(model: str) -> tuple[str, ...]:
    return ("--backbone", model, "--methods", "zero-shot")


# ---- the functions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CLASSES, *FILES, "\ud800", "plain", "café 犬", "👩\u200d🚀"])
def test_escapes(name: str) -> None:
    assert hidden(one_line(name), "\u200c\u200d") == []
    assert hidden(plain(name), "\u200c\u200d") == []
    assert json.loads(json_text({name: name})) == {name: name}
    assert hidden(json_text({name: name}), "\u200c\u200d") == []
    assert csv_name(csv_cell(name)) == name
    assert not re.match(r"[=+@\-]", csv_cell(name))
    assert re.fullmatch(r'[^\\/:*?"<>|\x00-\x1f\x7f]+', file_name(name))
    if name in ("plain", "café 犬", "👩\u200d🚀"):
        assert one_line(name) == plain(name) == latex(name) == markdown(name) == csv_cell(name) == name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("O-TPT (λ = 18)", "O-TPT (λ = 18)"),
        ("a_b*c", r"a\_b\*c"),
        ("- item", r"\- item"),
        ("---", r"\---"),
        ("-", r"\-"),
        ("+ item", r"\+ item"),
        ("12. item", r"12\. item"),
        ("12) item", r"12\) item"),
        ("1.25 + 2", "1.25 + 2"),
        ("-0.5", "-0.5"),
        ("2024 (new)", "2024 (new)"),
    ],
)
def test_markdown_escapes_only_what_changes_the_rendering(text: str, shown: str) -> None:
    assert markdown(text) == shown


@pytest.mark.parametrize("name", ["..", ".", "", "/", "...hidden", "con:", "a" * 400])
def test_file_names_stay_in_their_folder(name: str) -> None:
    made = file_name(name)
    assert Path("folder", made).parent == Path("folder")
    assert not made.startswith(".")
    assert 0 < len(made) <= 60


# ---- predictions ----------------------------------------------------------------------------------------------------


def test_predictions_on_the_terminal(otpt: Run, photos: Path, options: tuple[str, ...]) -> None:
    one = sorted(photos.rglob("*.png"))[0]
    for words in (
        [photos],
        [photos, "--sort", "uncertain"],
        [one],
        [photos, "--json"],
        [photos, "--top", 2],
        [photos, "--multi-label"],
    ):
        methods = options[:2] if "--multi-label" in words else options
        code, out, err = otpt("predict", *words, "--classes", *CLASSES, *methods)
        assert code == (0 if words[0] == one else 2)
        assert hidden(out) == []
        assert hidden(err) == []
        if "--json" in words:
            rows = [json.loads(line) for line in out.splitlines()]
            assert {row.get("label") for row in rows} <= {None, *CLASSES}
            assert str(one) in [row["image"] for row in rows]
        elif len(words) == 1 and words[0] == photos:
            assert len(out.splitlines()) == len(CLASSES) * len(FILES), "a line break in a name makes no line"


def test_predictions_in_files(otpt: Run, photos: Path, options: tuple[str, ...]) -> None:
    frames = {}
    for out in ("p.csv", "p.jsonl", "p.parquet", "s.csv"):
        words = ["--sort", "uncertain"] if out == "s.csv" else []
        code, printed, err = otpt("predict", photos, "--classes", *CLASSES, *options, "-o", out, "--top", 2, *words)
        assert code == 2
        assert hidden(printed + err) == []
    with open("p.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert [cell for row in rows for cell in row if re.match(r"\s*[=+@]|\s*-\D", cell)] == []
    frames["csv"] = [csv_name(row[rows[0].index("image")]) for row in rows[1:]]
    frames["jsonl"] = [json.loads(line)["image"] for line in Path("p.jsonl").read_text("utf-8").splitlines()]
    frames["parquet"] = list(pd.read_parquet("p.parquet")["image"])
    assert frames["csv"] == frames["jsonl"] == frames["parquet"]
    assert set(pd.read_parquet("p.parquet")["label"].dropna()) <= set(CLASSES)


def test_decisions_on_names(otpt: Run, labelled: Path, options: tuple[str, ...]) -> None:
    """Names come back from a CSV file, whose apostrophes belong to no name."""
    assert otpt("predict", labelled, "--classes", *CLASSES, *options, "-o", "p.csv")[0] == 0
    with open("truth.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        writer.writerows([path, CLASSES[0]] for path in sorted(labelled.rglob("*.png")))
    code, out, err = otpt("decide", "p.csv", "--labels", "truth.csv", "--risks", "0.9")
    assert hidden(out + err) == []
    assert code == 0, err


def test_heat_maps(otpt: Run, photos: Path, options: tuple[str, ...], tmp_path: Path) -> None:
    one = sorted(photos.rglob("*.png"))[0]
    code, out, err = otpt("predict", one, "--classes", "../../up", CLASSES[0], *options, "--explain", "-o", "p.csv")
    assert code == 0, err
    assert hidden(out + err) == []
    (made,) = (tmp_path / "p-maps").iterdir()
    assert hidden(made.name) == []
    assert made.suffix == ".png"


def test_tasks_of_label_studio(otpt: Run, photos: Path, options: tuple[str, ...]) -> None:
    code, out, err = otpt(
        "predict", photos, "--classes", *CLASSES, *options, "--export", "label-studio", "-o", "t.json"
    )
    assert code == 2
    assert hidden(out + err) == []
    tasks = json.loads(Path("t.json").read_text("utf-8"))
    assert {task["predictions"][0]["result"][0]["value"]["choices"][0] for task in tasks} <= set(CLASSES)
    root = ElementTree.fromstring(Path("t.xml").read_text("utf-8"))
    assert [choice.get("value") for choice in root.iter("Choice")] == [one_line(name) for name in CLASSES]
    assert all(re.fullmatch(r"[\w%./?=+@~-]+", task["data"]["image"]) for task in tasks)


def test_notebook_reprs(model: str, photos: Path) -> None:
    clf = package.load(model, method="zero-shot", device="cpu", classes=CLASSES)
    predictions = clf.predict(sorted(photos.rglob("*.png")), errors="return")
    for shown in (clf, predictions, predictions[0], *predictions.failures):
        check_html(shown._repr_html_())
    figure = predictions.plot()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(file, format="svg")
    check_svg(file.getvalue())


# ---- evaluations ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run_of_names(otpt: Run, labelled: Path, model: str) -> str:
    words = ["--backbone", model, "--methods", "zero-shot", "mean-probability", "--views", "2", "--no-cache"]
    code, out, err = otpt("evaluate", labelled, *words, "--out", "run", "--save-probabilities")
    assert code == 0, err
    assert hidden(out + err) == []
    return "run"


def test_reports_of_runs(otpt: Run, run_of_names: str, labelled: Path) -> None:
    for words in (
        ["metrics", "run"],
        ["metrics", "run", "--json"],
        ["table", "run"],
        ["compare", "run", "--methods", "zero-shot", "mean-probability"],
    ):
        code, out, err = otpt(*words)
        assert code == 0, (words, err)
        assert hidden(out + err) == [], words
    assert otpt("datasets", "check", labelled)[0] == 0
    assert hidden("".join(otpt("datasets", "check", labelled)[1:])) == []

    assert otpt("metrics", "run", "-o", "m.csv")[0] == 0
    assert otpt("table", "run", "-o", "t.csv")[0] == 0
    for name in ("m.csv", "t.csv"):
        cells = [cell for row in csv.reader(Path(name).read_text("utf-8").splitlines()) for cell in row]
        assert [cell for cell in cells if re.match(r"[=+@]|-\D", cell)] == []

    assert otpt("table", "run", "-o", "t.tex")[0] == 0
    check_latex(Path("t.tex").read_text("utf-8"))
    assert otpt("table", "run", "-o", "t.md")[0] == 0
    check_markdown(Path("t.md").read_text("utf-8"))
    assert otpt("report", "run", "-o", "r.html", "--explain", "1")[0] in (0, 2)
    assert otpt("report", "run", "-o", "r.html", "--overwrite")[0] == 0
    check_html(Path("r.html").read_text("utf-8"), scripts=False)


def test_figures_of_runs(otpt: Run, run_of_names: str) -> None:
    for kind in ("reliability", "histogram", "coverage"):
        code, _, err = otpt("plot", kind, "run", "-o", f"{kind}.svg")
        if code == 0:
            check_svg(Path(f"{kind}.svg").read_bytes())
        assert hidden(err) == []
    assert list(Path().glob("*.svg"))
    assert otpt("plot", "reliability", "run", "-o", "r.png")[0] == 0


def test_reprs_of_runs(run_of_names: str) -> None:
    check_html(RunFolder(Path("run"))._repr_html_())
    results = open_results([Path("run")])
    if hasattr(results, "_repr_html_"):
        check_html(results._repr_html_())


def test_several_labels(otpt: Run, labelled: Path, model: str) -> None:
    with open("l.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "labels"])
        writer.writerows([str(path), path.parent.name] for path in sorted(labelled.rglob("*.png"))[:8])
    words = ["evaluate", "l.csv", "--multi-label", "--backbone", model, "--no-cache"]
    code, out, err = otpt(*words, "--out", "run")
    assert code == 0, err
    assert hidden(out + err) == []
    for form in ("markdown", "latex", "csv", "text"):
        code, out, err = otpt("table", "run", "--format", form)
        assert code == 0, err
        assert hidden(out) == []
        if form == "latex":
            check_latex(out)
    assert otpt("metrics", "run", "-o", "m.html")[0] in (0, 2)


# ---- other ways out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CLASSES, *FILES])
def test_mistakes_with_names(otpt: Run, name: str, options: tuple[str, ...]) -> None:
    for words in (
        ["predict", f"./{name}", "--classes", "a", "b"],
        ["predict", "x.png", "--classes", f"@{name}"],
        ["evaluate", f"./{name}"],
        ["metrics", f"./{name}"],
        ["predict", "x.png", "--classes", "a", "b", "--backbone", f"./{name}"],
    ):
        code, out, err = otpt(*words)
        assert code == 2, words
        assert hidden(out + err) == [], words
        assert len(err.splitlines()) == 1, words


def test_errors_of_stores(tmp_path: Path) -> None:
    with pytest.raises(OtptError) as error, RowStore(tmp_path / "a\x1b[2J.txt", {}):
        pass
    assert hidden(str(error.value)) == []


# ---- rules of destinations ------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Names of elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for _, value in attrs]


def check_html(text: str, *, scripts: bool = False) -> None:
    """No element or attribute comes from a name."""
    page = Elements()
    page.feed(text)
    assert not {name for name in page.attributes if name.startswith("on")}
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert not [value for value in page.values if value.startswith("javascript:")]


def check_svg(data: bytes) -> None:
    """It is XML, and formulas in names are not set as formulas."""
    root = ElementTree.fromstring(data)
    assert not [element for element in root.iter() if element.tag.endswith("script")]


def check_latex(text: str) -> None:
    assert hidden(text) == []
    assert "\\input" not in text
    without_escapes = re.sub(r"\\[&%$#_{}]", "", text)
    body = "\n".join(line for line in without_escapes.splitlines() if not line.startswith("%"))
    assert "#" not in body
    assert "%" not in body
    assert "_" not in body
    assert re.sub(r"\$(\\pm|-|\\approx|\\geq)\$", "", body).count("$") == 0


def check_markdown(text: str) -> None:
    assert hidden(text) == []
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}
    assert len(columns) == 1, "a name makes no column"
    assert "<script>" not in text
