"""``python processor_results.py FOLDER THREADS …``: digests of the rows of an evaluation of every method, as JSON.

One evaluation for each number of threads, each in a folder of its own: all digests must be equal. Without THREADS, the
process evaluates with the threads that it starts with, then begins the run ``FOLDER/killed`` and kills itself in the
middle; a process that finds that run resumes a copy of it in every round.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pandas as pd
import torch
from faults.processes import at_write
from oracles.data.images import image
from oracles.models.tiny import open_clip_local_dir

from otpt.cli import main
from otpt.methods import field_methods, published_methods
from otpt.runs import Run

WITHOUT_FILES = ("words", "templates", "templates-7")
METHODS = [
    name
    for name, method in {**published_methods(), **field_methods()}.items()
    if method.init in WITHOUT_FILES and method.adapt not in ("baple", "fpt", "promptsmooth")
]
FEW = ["zero-shot", "confident-half", "tpt", "o-tpt", "tda"]


def prepare(folder: Path) -> None:
    """Write the images and two small models, once."""
    for kind in ("vit", "resnet"):
        if not (folder / kind).exists():
            open_clip_local_dir(folder / kind, kind)
    for i in range(7):
        place = folder / "images" / ("cat", "red panda", "sea")[i % 3] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        image(i).save(place)


def evaluate(folder: Path, model: str, methods: list[str], out: Path) -> None:
    command = ["evaluate", str(folder / "images"), "--backbone", f"local-dir:{folder / model}", "--views", "12"]
    command += ["--methods", *methods, "--seeds", "0", "1", "--device", "cpu", "--no-cache", "--out", str(out)]
    with redirect_stdout(sys.stderr):
        assert main(command) == 0


def digests(run: Path, title: str) -> dict[str, str]:
    """By method, the digest of its rows in a fixed order."""
    rows: pd.DataFrame = Run(run).to_pandas()
    found = {}
    for method, own in rows.sort_values(["seed", "id"]).groupby("method"):
        text = own.drop(columns=["index"], errors="ignore").to_json(orient="records", double_precision=15)
        exact = "".join(float(value).hex() for value in own["confidence"])
        found[f"{title}: {method}"] = hashlib.sha256((text + exact).encode()).hexdigest()[:16]
    return found


def one_round(folder: Path, place: Path) -> dict[str, str]:
    shutil.rmtree(place, ignore_errors=True)
    evaluate(folder, "vit", METHODS, place / "vit")
    evaluate(folder, "resnet", FEW, place / "resnet")
    found = {**digests(place / "vit", "ViT"), **digests(place / "resnet", "ResNet")}
    if (folder / "killed").exists():
        shutil.copytree(folder / "killed", place / "resumed")
        evaluate(folder, "vit", METHODS, place / "resumed")
        assert digests(place / "resumed", "ViT") == {key: own for key, own in found.items() if key.startswith("ViT")}
    return found


if __name__ == "__main__":
    given, threads = Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]
    prepare(given)
    started = torch.get_num_threads()
    rounds = {}
    for number in threads or [started]:
        torch.set_num_threads(number)
        rounds[str(number)] = one_round(given, given / f"threads-{number}")
    capability = torch.backends.cpu.get_cpu_capability()
    print(json.dumps({"threads": started, "capability": capability, "rounds": rounds}), flush=True)
    if not threads:
        at_write(given / "killed", 120, lambda: os.kill(os.getpid(), signal.SIGKILL))
        evaluate(given, "vit", METHODS, given / "killed")
