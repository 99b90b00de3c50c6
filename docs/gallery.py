"""Makes the pictures of figures.md: ``python docs/gallery.py``, some minutes on two cores.

Runs on the emoji bench with the embedded model, few pictures; then every figure by one command of ``otpt``.
Stopped, it goes on where it was.
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
    "posthoc": (("main",), ()),
    "pareto": (("main", "sweep"), ("--datasets", *SETS[:2], "--methods", "tpt", "c-tpt", *SWEPT)),
    "seeds": (("seeds",), ()),
    "risk-coverage": (("main",), ("--datasets", *SETS[:2])),
}
"""Of each figure: the runs, and the options."""


def make_runs(
    runs: Path, backbone: str, pictures: int, views: int, *, workers: int = 1, templates: str = "imagenet-80"
) -> None:
    """The four runs that the figures need."""
    alike = ("--backbone", backbone, "--views", str(views), "--workers", str(workers), "--part-size", "25")
    common, few = (*alike, "--limit", str(pictures)), (*alike, "--limit", str(pictures // 3))
    _otpt("evaluate", *SETS, "--methods", *METHODS, *common, "--out", str(runs / "main"))
    _otpt("sweep", *SETS[:2], "--set", f"lambda={','.join(LAMBDAS)}", *common, "--out", str(runs / "sweep"))
    _otpt("sweep", *SETS[:2], "--method", "zero-shot", "--prompts", templates, *common, "--out", str(runs / "prompts"))
    _otpt("evaluate", *SETS, "--methods", *METHODS[1:4], "--seeds", "0", "1", "2", *few, "--out", str(runs / "seeds"))


def draw_figure(kind: str, runs: Path, file: Path) -> None:
    """One command of ``otpt``."""
    used, options = FIGURES[kind]
    _otpt("plot", kind, *(str(runs / name) for name in used), "-o", str(file), "--dpi", "110", *options)


def draw_page(runs: Path) -> None:
    """The top of the page as a browser shows it; nothing where there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("There is no Chromium here: the picture of the page stays as it is.")
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
    """A palette in place of full colours, rare ones kept: a third of the bytes, nothing lost to the eye."""
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(160, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def _otpt(*arguments: str) -> None:
    if code := otpt(list(arguments)):
        sys.exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="pocket")
    parser.add_argument("--runs", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--pictures", type=int, default=150, help="of each set")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    given = parser.parse_args()
    make_runs(given.runs, given.backbone, given.pictures, given.views, workers=given.workers)
    for each in FIGURES:
        draw_figure(each, given.runs, GALLERY / f"{each}.png")
        _shrink(GALLERY / f"{each}.png")
    draw_page(given.runs)
