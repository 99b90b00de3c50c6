"""Zero-shot accuracy and calibration of ``pocket`` on the bench ``emoji``.

python -m training.evaluate              # the model in the package, all sets and shifts: table, pages
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from open_clip.tokenizer import SimpleTokenizer
from PIL import Image
from torch import Tensor

from benchmarks.pages import put_into
from otpt.backbones.pocket import SIZE, PocketClip, load_pocket_state
from otpt.data.emoji import EMOJI_SETS, load_emoji
from otpt.metrics import expected_calibration_error

from .captions import PROMPT, Captions
from .model import ImageTower, encode_texts

FINE_GRAINED = EMOJI_SETS[:8]
_ROOT = Path(__file__).resolve().parents[1]
RESULTS_FILE = _ROOT / "training/results/zero_shot.json"
PAGES = (_ROOT / "src/otpt/backbones/pocket/MODEL_CARD.md", _ROOT / "docs/pocket.md")


@dataclass(frozen=True)
class BenchSet:
    """The images of one set as the model sees them."""

    images: Tensor  # (N, 3, S, S) uint8
    labels: Tensor  # (N,)
    class_names: tuple[str, ...]


def read_set(name: str, size: int, *, compositions: int | None = None) -> BenchSet:
    """The set's images, bicubically reduced to ``size``; only the first ``compositions`` of each class if given."""
    data = load_emoji(name)
    count = len(data) if compositions is None else compositions * len(data.class_names)
    images = [np.asarray(data.image(index).resize((size, size), Image.Resampling.BICUBIC)) for index in range(count)]
    labels = torch.tensor([data.label(index) for index in range(count)])
    return BenchSet(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), labels, data.class_names)


def load_bench(file: Path, size: int) -> dict[str, BenchSet]:
    """One composition of every class of the eight sets, for the training curve; kept in ``file``."""
    if not file.exists():
        sets = {name: read_set(name, size, compositions=1) for name in FINE_GRAINED}
        np.savez(file, **{name.replace("/", "-"): part.images.numpy() for name, part in sets.items()})
    with np.load(file) as arrays:
        bench = {}
        for name in FINE_GRAINED:
            names = load_emoji(name).class_names
            images = torch.from_numpy(arrays[name.replace("/", "-")])
            bench[name] = BenchSet(images, torch.arange(len(names)), names)
    return bench


def class_texts(model: PocketClip, class_names: Sequence[str], captions: Captions | None = None) -> Tensor:
    """(C, D): the names in the bench's prompt, unit norm.

    ``captions`` if the model's token table is still the compact one of the training.
    """
    ids = SimpleTokenizer()([PROMPT.format(name) for name in class_names])
    with torch.inference_mode():
        return encode_texts(model, ids if captions is None else captions.compact(ids))


def probabilities(model: PocketClip, data: BenchSet, texts: Tensor) -> Tensor:
    """(N, C): softmax of logit scale × cosine with the texts (C, D)."""
    image = ImageTower(model).eval()
    with torch.inference_mode():
        features = torch.cat([image(part.float() / 255) for part in data.images.split(256)])
        return F.softmax(model.logit_scale.exp() * features @ texts.T, dim=-1)


def evaluate_package() -> None:
    """Measures the model in the package on every set and shift, prints the table and stores it beside the model."""
    config, state = load_pocket_state()
    config = config["model_cfg"]
    model = PocketClip(embed_dim=config["embed_dim"], **config["text_cfg"])
    model.load_state_dict(state, strict=False)
    rows = []
    for name in EMOJI_SETS:
        data = read_set(name, SIZE)
        probs = probabilities(model, data, class_texts(model, data.class_names)).numpy()
        labels = data.labels.numpy()
        rows.append(
            {
                "set": name,
                "classes": len(data.class_names),
                "images": len(labels),
                "accuracy": round(100 * float((probs.argmax(-1) == labels).mean()), 2),
                "confidence": round(100 * float(probs.max(-1).mean()), 2),
                "ece": round(100 * expected_calibration_error(probs, labels), 2),
            }
        )
    print(table(rows))
    RESULTS_FILE.parent.mkdir(exist_ok=True)
    RESULTS_FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for page in PAGES:
        put_into(page, "zero-shot", table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows, and the means over the eight sets and the five shifts, in Markdown."""
    lines = ["| set | classes | images | accuracy % | confidence % | ECE % |", "|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| {row['set']} | {row['classes']} | {row['images']} | {row['accuracy']:.1f} "
            f"| {row['confidence']:.1f} | {row['ece']:.1f} |"
        )
    for title, part in (("mean of the eight sets", rows[:8]), ("mean of the five shifts", rows[8:])):
        means = [float(np.mean([row[key] for row in part])) for key in ("accuracy", "confidence", "ece")]
        lines.append(f"| **{title}** | | | " + " | ".join(f"**{value:.1f}**" for value in means) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    evaluate_package()
