"""Data sets of Hugging Face on disk: what ``save_to_disk`` wrote, damaged or with scripts beside it."""

from __future__ import annotations

import io
import json
import os
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from otpt.data import load_dataset
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import DECOY, as_json, damaged, mutated, text
from torture.inputs.tables import use

_SCRIPT = "import os\nos.system('touch ../../outside/owned')\nraise SystemExit\n"


@cache
def _good() -> dict[str, bytes]:
    """The files of a data set of four images."""
    _offline()
    import datasets  # type: ignore[import-untyped,unused-ignore]

    datasets.disable_progress_bars()
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(buffer, "PNG")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows: dict[str, Any] = {"image": [{"bytes": buffer.getvalue(), "path": None}] * 4, "label": [0, 1, 0, 1]}
    with tempfile.TemporaryDirectory() as place:
        datasets.Dataset.from_dict(rows, features=features).save_to_disk(f"{place}/data")
        folder = Path(place) / "data"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _offline() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def _folder(rng: random.Random, given: Path) -> Input:
    folder = given / "data"
    folder.mkdir()
    files = dict(_good())
    name = rng.choice(sorted(files))
    if name.endswith(".json") and rng.random() < 0.8:
        content = mutated(rng, json.loads(files[name]))
        if rng.random() < 0.2 and isinstance(content, dict):
            content["_data_files"] = [{"filename": rng.choice((f"../{DECOY}secret.txt", "/etc/passwd", text(rng)))}]
        files[name] = as_json(rng, content)
    else:
        files[name] = damaged(rng, files[name])[0]
    for each, data in files.items():
        (folder / each).write_bytes(data)
    for script in ("data.py", "dataset.py", "__init__.py"):
        (folder / script).write_text(_SCRIPT, encoding="utf-8")
    if rng.random() < 0.1:
        (folder / "state.json").unlink()
    return Input(f"{name}", lambda: use(load_dataset(f"hf:{folder}")))


KINDS = [Kind("Hugging Face folders", _folder, _good)]
