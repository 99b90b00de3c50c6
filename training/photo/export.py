"""The distilled text tower and ImageNet's classifier → the files of ``src/otpt/backbones/pocket_photo``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import open_clip
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from otpt.backbones.embedded import ROW_IDS, ROWS
from otpt.backbones.pocket_photo import CONFIG, WEIGHTS_FILE, register_trunk

from .student import AXES, EMBED_DIM, WIDTH, TextTower, Vocabulary

FOLDER = Path(__file__).resolve().parents[2] / "src/otpt/backbones/pocket_photo"
TOKEN_SPREAD = 0.02  # standard deviation of the numbers in a CLIP token embedding


@dataclass(frozen=True)
class Geometry:
    """Directions that all texts and all images share, and the logit scale."""

    text_share: float = 0.7  # mean cosine between texts of unrelated classes, in CLIP 0.6 to 0.8
    image_share: float = 0.4  # of an image whose class is certain
    gap: float = 0.35  # cosine between the two shared directions
    logit_scale: float = 34.0  # of ``training.photo.scale``


def text_state(tower: TextTower, geometry: Geometry) -> dict[str, Tensor]:
    """Return open_clip's weights of the text tower; token embeddings are those of ``Vocabulary.rows``.

    The last norm's output has mean zero. Its bias is the same number everywhere, so that the direction of all texts
    is orthogonal to what the tower says about a text, and has the same share in every text.
    """
    bias = math.sqrt(geometry.text_share / (1 - geometry.text_share))
    common = torch.full((WIDTH, 1), WIDTH**-0.5)
    state = {
        "ln_final.weight": torch.ones(WIDTH),
        "ln_final.bias": torch.full((WIDTH,), bias),
        "text_projection": torch.cat([tower.projection, common], dim=1),
        "logit_scale": torch.tensor(math.log(geometry.logit_scale)),
    }
    # Everything that is added to the residual stream is multiplied; each reader normalises first, so features stay.
    # A step of test-time tuning has a fixed length in token space and means here what it means in CLIP.
    factor = TOKEN_SPREAD / float(tower.tokens.weight.std())
    state[ROWS] = tower.tokens.weight * factor
    state["positional_embedding"] = tower.positions * factor
    for name, value in tower.transformer.state_dict().items():
        written = name.endswith(("attn.out_proj.weight", "attn.out_proj.bias", "c_proj.weight", "c_proj.bias"))
        state[f"transformer.{name}"] = value * factor if written else value
    return state


def image_state(weights: dict[str, Tensor], classes: Tensor, geometry: Geometry) -> dict[str, Tensor]:
    """Return open_clip's weights of the image tower.

    Args:
        weights: ImageNet's classifier; its tensors come in timm's order.
        classes: directions (1000, D - 1) of ImageNet's classes.
        geometry: shared directions.
    """
    names = timm.create_model("tf_efficientnet_lite0").state_dict()
    if [value.shape for value in names.values()] != [value.shape for value in weights.values()]:
        raise SystemExit("The classifier does not fit timm's tf_efficientnet_lite0.")
    state = {f"visual.trunk.net.{name}": value for name, value in zip(names, weights.values(), strict=True)}
    shared = torch.zeros(EMBED_DIM)
    shared[AXES], shared[-1] = math.sqrt(1 - geometry.gap**2), geometry.gap
    strength = math.sqrt(geometry.image_share / (1 - geometry.image_share))
    state["visual.head.proj.weight"] = F.pad(classes, (0, 1)).T.contiguous()
    state["visual.head.proj.bias"] = strength * shared
    return state


def export(state: dict[str, Tensor], vocabulary: Vocabulary, folder: Path = FOLDER) -> None:
    """Write the weights: float16, but batch statistics and the logit scale in float32."""
    stored = {ROW_IDS: vocabulary.rows.to(torch.int32)}
    for name, value in state.items():
        half = value.is_floating_point() and "running_" not in name and name != "logit_scale"
        stored[name] = (value.detach().half() if half else value).contiguous()
    file = folder / WEIGHTS_FILE
    save_file(stored, file)
    file.chmod(0o644)  # save_file lets only the owner read it
    register_trunk()
    expected = {name for name in open_clip.CLIP(**CONFIG["model_cfg"]).state_dict() if name != "attn_mask"}
    missing = expected.symmetric_difference(stored) - {ROWS, ROW_IDS, "token_embedding.weight"}
    if missing:
        raise SystemExit(f"{file} does not fit open_clip: {sorted(missing)[:5]}")
    print(f"{file}: {file.stat().st_size / 1e6:.2f} MB, {len(vocabulary.rows)} token rows")
