"""Models that ship with the package: open_clip's configuration next to compact weights.

Weights are stored in float16. Of CLIP's 49,408 token embeddings only the trained ones are stored; the others are set to
their mean, so that unknown words carry no information.
"""

from __future__ import annotations

import json
from importlib import resources

from safetensors.torch import load
from torch import Tensor

from otpt.backbones.open_clip_models import FolderConfig, clip_tokenizer
from otpt.backbones.sources import Parts, choose_gelu

ROWS, ROW_IDS = "token_embedding.rows", "token_embedding.row_ids"
"""Names of the trained token embeddings (R, W) and their ids (R,) in the weights."""


def read_config(package: str) -> FolderConfig:
    """Return the architecture (``model_cfg``) and preprocessing (``preprocess_cfg``) of an embedded model."""
    config: FolderConfig = json.loads(resources.files(package).joinpath("open_clip_config.json").read_bytes())
    return config


def load_embedded(name: str, package: str, weights_file: str, quick_gelu: bool | None) -> Parts:
    """Load an embedded model, whose image trunk is registered with timm."""
    import open_clip

    config = read_config(package)
    state = load(resources.files(package).joinpath(weights_file).read_bytes())
    rows, ids = state.pop(ROWS).float(), state.pop(ROW_IDS)
    table = rows.mean(0).repeat(config["model_cfg"]["text_cfg"]["vocab_size"], 1)
    table[ids.long()] = rows
    quick = choose_gelu(quick_gelu, False, None, name)
    model = open_clip.CLIP(**config["model_cfg"], quick_gelu=quick).eval().requires_grad_(False)
    weights: dict[str, Tensor] = state | {"token_embedding.weight": table}
    model.load_state_dict(weights)
    return Parts(model, clip_tokenizer(), config["preprocess_cfg"], name)
