"""Make the images of figures.md: ``python docs/gallery.py``, about a quarter of an hour on two cores.

Evaluates the embedded model on a few images of the emoji bench, then draws every figure with one ``otpt`` command,
light and dark. An interrupted run resumes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from otpt.cli import main as otpt

GALLERY = Path(__file__).parent / "gallery"
SETS = ("emoji/animals", "emoji/food", "emoji/travel")
METHODS = ("zero-shot", "tpt", "c-tpt", "o-tpt", "tpt+ts")
LAMBDAS = ("0", "1", "2", "6", "18", "54")
SWEPT = [f"o-tpt[lambda={value}]" for value in LAMBDAS]
PROMPTS = (
    "a photo of a",
    "a drawing of a",
    "itap of a",
    "a low resolution photo of the",
    "art of the",
    "a [CLS] in a video game",
)
FIGURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "reliability": (("main",), ("--methods", "tpt", "o-tpt")),
    "confidence": (("main",), ("--methods", "tpt", "o-tpt")),
    "radar": (("main",), ("--methods", "tpt", "c-tpt", "o-tpt")),
    "similarity": (("prompts",), ("--dataset", SETS[0], "--prompts", *PROMPTS)),
    "cosine": (("main",), ("--datasets", SETS[0])),
    "groups": (("main",), ("--datasets", SETS[0])),
    "templates": (("prompts",), ()),
    "posthoc": (("seeds",), ()),
    "pareto": (("main", "sweep"), ("--datasets", *SETS[:2], "--methods", "tpt", "c-tpt", *SWEPT)),
    "seeds": (("seeds",), ()),
    "risk-coverage": (("main",), ("--datasets", *SETS[:2])),
}
"""Runs and options of each figure."""


def make_runs(
    runs: Path, backbone: str, images: int, views: int, *, workers: int = 1, templates: str = "imagenet-80"
) -> None:
    """The four runs that the figures need."""
    alike = ("--backbone", backbone, "--views", str(views), "--workers", str(workers), "--shard-size", "25")
    common, few = (*alike, "--limit", str(images)), (*alike, "--limit", str(images // 3))
    _otpt("evaluate", *SETS, "--methods", *METHODS, *common, "--out", str(runs / "main"))
    _otpt("sweep", *SETS[:2], "--set", f"lambda={','.join(LAMBDAS)}", *common, "--out", str(runs / "sweep"))
    _otpt("sweep", *SETS[:2], "--method", "zero-shot", "--prompts", templates, *common, "--out", str(runs / "prompts"))
    _otpt("evaluate", *SETS, "--methods", *METHODS[1:], "--seeds", "0", "1", "2", *few, "--out", str(runs / "seeds"))


def draw_figure(kind: str, runs: Path, file: Path, *, theme: str = "light") -> None:
    """Draw a figure with one ``otpt`` command."""
    used, options = FIGURES[kind]
    folders = [str(runs / name) for name in used]
    _otpt("plot", kind, *folders, "-o", str(file), "--dpi", "110", "--theme", theme, *options)


def draw_page(runs: Path) -> None:
    """Take a screenshot of the top of the page; skipped without Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("Chromium was not found: the screenshot of the page is not updated.")
        return
    file = GALLERY / "report.png"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        _otpt("report", str(runs / "main"), "-o", str(page), "--title", "Three emoji sets")
        quiet = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ]
        shot = [f"--screenshot={file}", "--window-size=1000,1250", page.as_uri()]
        subprocess.run([browser, *quiet, *shot], check=True, capture_output=True)
    _shrink(file)


def _shrink(file: Path) -> None:
    """Reduce the colours to a palette: a third of the bytes, without visible loss."""
    with Image.open(file) as image:
        small = image.convert("RGB").quantize(160, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def _otpt(*arguments: str) -> None:
    if code := otpt(list(arguments)):
        sys.exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="pocket")
    parser.add_argument("--runs", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--images", type=int, default=150, help="images per set")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    given = parser.parse_args()
    make_runs(given.runs, given.backbone, given.images, given.views, workers=given.workers)
    for each in FIGURES:
        for theme, suffix in (("light", ""), ("dark", "-dark")):
            drawn = GALLERY / f"{each}{suffix}.png"
            draw_figure(each, given.runs, drawn, theme=theme)
            _shrink(drawn)
    draw_page(given.runs)
