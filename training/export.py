"""The trained checkpoint → the files of ``src/otpt/backbones/pocket``."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from otpt.backbones.embedded import ROW_IDS, ROWS
from otpt.backbones.open_clip_models import CONFIG_FILE
from otpt.backbones.pocket import WEIGHTS_FILE

from .captions import Captions
from .model import CONFIG, MEAN, STD
from .names import read_emoji

TOKENS = "token_embedding.weight"

FOLDER = Path(__file__).resolve().parents[1] / "src/otpt/backbones/pocket"
CLIP_TOKEN_SPREAD = 0.02  # standard deviation of the numbers in a CLIP token embedding


def rescale_residual(state: dict[str, Tensor], factor: float) -> dict[str, Tensor]:
    """The same text tower with ``factor`` times the token embeddings.

    Everything that is added to the residual stream (tokens, positions, the outputs of attention and MLP) is
    multiplied; each reader normalises first, so the features stay (but for the norms' tiny epsilon). Test-time
    tuning takes steps of a fixed length in token space: they should mean here what they mean in a CLIP.
    """
    written = ("attn.out_proj.weight", "attn.out_proj.bias", "mlp.c_proj.weight", "mlp.c_proj.bias")
    return {
        name: value * factor
        if name in {TOKENS, "positional_embedding"} or (name.startswith("transformer.") and name.endswith(written))
        else value
        for name, value in state.items()
    }


def compact_state(state: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """What is stored: float16, but batch statistics in float32 (some are too large or too small), no mask."""
    stored = {}
    for name, value in state.items():
        if name == "attn_mask":
            continue
        half = value.is_floating_point() and "running_" not in name
        stored[ROWS if name == TOKENS else name] = (value.half() if half else value).contiguous()
    return stored | {ROW_IDS: rows.to(torch.int32)}


def export(work: Path, folder: Path = FOLDER) -> None:
    """Writes configuration and weights of the run's moving average."""
    state = torch.load(work / "run.pt", weights_only=True)["average"]
    rows = Captions(read_emoji(work / "packages")).rows
    state = rescale_residual(state, CLIP_TOKEN_SPREAD / float(state[TOKENS].std()))
    config = {
        "model_cfg": CONFIG,
        "preprocess_cfg": {
            "mean": list(MEAN),
            "std": list(STD),
            "interpolation": "bicubic",
            "resize_mode": "shortest",
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(compact_state(state, rows), folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).chmod(0o644)  # save_file lets the owner alone read it
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in (folder / WEIGHTS_FILE, folder / CONFIG_FILE))
    print(f"{folder}: {size / 1e6:.2f} MB, {len(rows)} token rows")
