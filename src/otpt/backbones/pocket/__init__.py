"""The embedded model ``pocket``: a small CLIP for emoji, in open_clip's format.

Weights are stored as float16, and of CLIP's 49,408 token rows only those that were trained; all other rows are
their mean, so an unknown word carries no information. ``load_pocket_state`` gives the whole float32 model.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors.torch import load, save_file
from torch import Tensor

__all__ = ["load_pocket_state", "write_open_clip_folder"]

CONFIG_FILE = "open_clip_config.json"
WEIGHTS_FILE = "pocket.safetensors"
TOKENS = "token_embedding.weight"
ROWS, ROW_IDS = "token_embedding.rows", "token_embedding.row_ids"  # (R, W) trained rows and (R,) their ids


def load_pocket_state() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """open_clip's configuration (``model_cfg``, ``preprocess_cfg``) and its whole state dict in float32."""
    folder = resources.files(__package__)
    config: dict[str, Any] = json.loads(folder.joinpath(CONFIG_FILE).read_text(encoding="utf-8"))
    stored = load(folder.joinpath(WEIGHTS_FILE).read_bytes())
    return config, expand_state(stored, config["model_cfg"]["text_cfg"]["vocab_size"])


def expand_state(stored: dict[str, Tensor], tokens: int) -> dict[str, Tensor]:
    """The stored tensors → open_clip's: float32, and a table of ``tokens`` rows."""
    state = {name: value.float() if value.is_floating_point() else value for name, value in stored.items()}
    rows, ids = state.pop(ROWS), state.pop(ROW_IDS)
    table = rows.mean(0).repeat(tokens, 1)
    table[ids.long()] = rows
    return state | {TOKENS: table}


def write_open_clip_folder(target: Path) -> None:
    """A folder that open_clip reads as ``local-dir:<target>``.

    open_clip itself needs ``import otpt.backbones.pocket.registration`` before, which brings the image trunk.
    """
    config, state = load_pocket_state()
    target.mkdir(parents=True, exist_ok=True)
    (target / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_file(state, target / "open_clip_model.safetensors")
