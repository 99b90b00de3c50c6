"""Every layout of a table and every figure, by one command each, from runs with the embedded model on its bench."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from oracles.command import run
from PIL import Image

from otpt.cli import main
from otpt.report.figures import FIGURES
from otpt.report.tables.layouts import LAYOUTS

pytestmark = pytest.mark.slow

pytest.importorskip("resvg_py")

SETS = ("emoji/animals", "emoji/food")
COMMON = ("--backbone", "pocket", "--views", "4", "--limit", "4", "--device", "cpu", "--no-cache")
LEARNED = ("coop", "coop+tpt", "coop+c-tpt", "coop+o-tpt", "maple", "maple+tpt", "maple+c-tpt", "maple+o-tpt")
TEMPLATES = (
    *("a photo of a {}.", "a drawing of a {}.", "itap of a {}.", "a low resolution photo of the {}.", "art of the {}."),
    *(
        "a {} in a video game.",
        "a sketch of a {}.",
        "a photo of one {}.",
        "the {}.",
        "a good photo of the {}.",
        "a toy {}.",
    ),
)
MEDICAL = "medical"  # its systems do not run on a bench of emoji


def _gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery", Path(__file__).parents[2] / "docs" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GALLERY = _gallery()


def otpt(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of the gallery, and those of tables that it does not need."""
    folder = tmp_path_factory.mktemp("embedded")
    templates = folder / "templates.txt"
    templates.write_text("\n".join(TEMPLATES), encoding="utf-8")
    patch = pytest.MonkeyPatch()
    patch.setenv("OTPT_CACHE", str(folder / "cache"))
    GALLERY.make_runs(folder, "pocket", 6, 4, templates=str(templates))
    otpt("evaluate", "emoji/line", "emoji/grey", *COMMON, "--out", folder / "shifts")
    readings = ("tpt", "o-tpt", "o-tpt-rows", "o-tpt+c-tpt")
    otpt("evaluate", *SETS, "--methods", *readings, *COMMON, "--out", folder / "readings")
    for name in SETS:
        for kind in ("coop", "maple"):
            out = folder / f"{kind}-{name.replace('/', '-')}.safetensors"
            few = ("--shots", "1", "--epochs", "1", *(("--crops", "1", "--no-cache") if kind == "coop" else ()))
            otpt("train", kind, name, "--backbone", "pocket", *few, "--out", out)
    contexts = [folder / f"{kind}-{{dataset}}.safetensors" for kind in ("coop", "maple")]
    otpt("evaluate", *SETS, "--methods", *LEARNED, "--context", *contexts, *COMMON, "--out", folder / "learned")
    patch.undo()
    return folder


RUN_OF = {
    "shifts": "shifts",
    "seeds": "seeds",
    "prompts": "prompts",
    "coop": "learned",
    "maple": "learned",
    "householder": "readings",
    "combination": "readings",
}


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != MEDICAL])
def test_every_layout(layout: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / RUN_OF.get(layout, "main")
    capsys.readouterr()
    code, out, err = run(capsys, "table", folder, "--layout", layout)
    assert (code, err) == (0, "")
    assert "emoji/" in out
    if layout in {"main", "shifts", "sce", "coop", "maple", "householder", "combination"}:
        (table,) = json.loads(run(capsys, "table", folder, "--layout", layout, "--format", "json")[1])
        scores = json.loads(run(capsys, "metrics", folder, "--json")[1])["scores"]
        own = {(score["method"], score["dataset"]): score for score in scores}
        shown = 0
        for line in table["lines"]:
            for name, cell in line["entries"].items():
                if (line["method"], name) in own:
                    assert cell["value"] == 100 * own[line["method"], name][line["metric"]]
                    shown += 1
        assert shown >= 2 * len(LAYOUTS[layout].metrics)


def test_every_kind_of_figure_is_drawn_below() -> None:
    assert set(GALLERY.FIGURES) == {*FIGURES, "similarity"}


@pytest.mark.parametrize("kind", GALLERY.FIGURES)
def test_every_figure(kind: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    GALLERY.draw_figure(kind, runs, tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        colours = image.convert("RGB").getcolors(1 << 24)
    assert colours is not None
    assert len(colours) > 20
    assert capsys.readouterr().err == ""


def test_the_page_has_images(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "report", runs / "main", "-o", tmp_path / "page.html")
    assert (code, err) == (0, "")
    assert "data:image/" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_paper_plan_without_data_is_of_the_bench(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "reproduce", "paper", "--out", tmp_path / "paper")
    assert code == 0
    assert "this is the emoji bench with a small model" in out
    assert "emoji/animals" in out


def test_paper_is_reproduced_on_the_bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTPT_CACHE", str(tmp_path / "cache"))
    few = ("--limit", 2, "--views", 4, "--datasets", "emoji/animals", "emoji/line", "--device", "cpu")
    code, out, _ = run(capsys, "reproduce", "paper", "--go", "--tables", 2, 4, 9, *few, "--out", tmp_path / "paper")
    assert code == 0
    assert "emoji bench" in out
    for words in ("emoji/animals", "emoji/line", "O-TPT", "Robust-adapt SaLS", "ECE", "SCE"):
        assert words in out
