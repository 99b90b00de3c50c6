"""Small models in the file formats of the medical systems: MedCLIP-ViT, PLIP, the ViT that FPT freezes.

Towers are built by transformers from small configurations, and stored under the names that the published files use,
which are those of transformers 4.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from oracles.models.tiny import randomise
from torch import Tensor, nn
from transformers import BertConfig, BertModel, CLIPConfig, CLIPModel, SwinConfig, SwinModel, ViTConfig, ViTModel

WORDS = ("x", ".", "covid", "normal", "a", "photo", "of", "cat", "dog", "chest", "ray")
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)

SWIN = {"image_size": 224, "patch_size": 16, "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "window_size": 7}
BERT = {
    "vocab_size": len(VOCABULARY), "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 1,
    "intermediate_size": 96, "max_position_embeddings": 40,
}  # fmt: skip

_PUBLISHED = (
    ("attention.q_proj", "attention.self.query"),
    ("attention.k_proj", "attention.self.key"),
    ("attention.v_proj", "attention.self.value"),
    ("attention.o_proj", "attention.output.dense"),
    ("attention.relative_position_bias.", "attention.self."),
    ("mlp.fc1", "intermediate.dense"),
    ("mlp.fc2", "output.dense"),
)


def _published(state: dict[str, Tensor], renamed: tuple[tuple[str, str], ...]) -> dict[str, Tensor]:
    """The same tensors under the names of transformers 4."""
    found = {}
    for name, tensor in state.items():
        published = name
        for ours, theirs in renamed:
            published = published.replace(ours, theirs)
        found[published] = tensor.detach().clone()
    return found


class TinyMedClip(nn.Module):
    """MedCLIP's two towers before anything of ours touches them."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.swin, self.bert = SwinModel(SwinConfig(**SWIN)), BertModel(BertConfig(**BERT))
        self.image_head = nn.Linear(32, 24, bias=False)
        self.text_head = nn.Linear(64, 24, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        randomise(self, seed)
        with torch.no_grad():
            self.logit_scale.fill_(math.log(1 / 0.07))


def write_medclip(folder: Path, seed: int = 0) -> TinyMedClip:
    """``pytorch_model.bin`` and ``vocab.txt`` as MedCLIP-ViT has them, with the index buffers of its time."""
    folder.mkdir(parents=True, exist_ok=True)
    model = TinyMedClip(seed)
    swin = _published(dict(model.swin.state_dict()), _PUBLISHED)
    for name in [name for name in swin if name.endswith("relative_position_bias_table")]:
        swin[name.replace("bias_table", "index")] = torch.zeros(49, 49, dtype=torch.long)
    state = {f"vision_model.model.{name}": tensor for name, tensor in swin.items()}
    state["vision_model.projection_head.weight"] = model.image_head.weight
    state |= {f"text_model.model.{name}": tensor for name, tensor in model.bert.state_dict().items()}
    state["text_model.model.embeddings.position_ids"] = torch.arange(40)[None]
    state["text_model.projection_head.weight"] = model.text_head.weight
    state["logit_scale"] = model.logit_scale
    torch.save({name: tensor.detach() for name, tensor in state.items()}, folder / "pytorch_model.bin")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return model


def write_plip(folder: Path, seed: int = 0) -> Any:
    """A ``CLIPModel`` as ``vinid/plip`` keeps it: ViT with patches of 32, QuickGELU, CLIP's vocabulary."""
    config = CLIPConfig(
        projection_dim=32,
        text_config={
            "vocab_size": 49408, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 77, "eos_token_id": 49407, "bos_token_id": 49406,
        },
        vision_config={
            "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 64, "patch_size": 32,
        },
    )  # fmt: skip
    model = randomise(CLIPModel(config), seed)
    model.save_pretrained(folder)
    return model


def write_vit(folder: Path, seed: int = 0, **sizes: Any) -> Any:
    """A frozen ViT as ``google/vit-base-patch16-384`` keeps it: names below ``vit.``, and a classifier beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = ViTConfig(
        **{
            "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48,
            "image_size": 32, "patch_size": 8, **sizes,
        },
        attn_implementation="eager",
    )  # fmt: skip
    model = randomise(ViTModel(config, add_pooling_layer=False), seed)
    renamed = (
        ("layers.", "encoder.layer."),
        ("attention.q_proj", "attention.attention.query"),
        ("attention.k_proj", "attention.attention.key"),
        ("attention.v_proj", "attention.attention.value"),
        ("attention.o_proj", "attention.output.dense"),
        ("mlp.fc1", "intermediate.dense"),
        ("mlp.fc2", "output.dense"),
    )
    state = {f"vit.{name}": tensor for name, tensor in _published(dict(model.state_dict()), renamed).items()}
    state |= {"classifier.weight": torch.zeros(5, 24), "classifier.bias": torch.zeros(5)}
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(
        json.dumps({**config.to_diff_dict(), "model_type": "vit", "architectures": ["ViTForImageClassification"]}),
        encoding="utf-8",
    )
    return model
