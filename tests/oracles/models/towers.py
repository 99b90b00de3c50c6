"""Small text towers that are not CLIP's: not causal, pooled otherwise, or of another maker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from open_clip.coca_model import CoCa
from open_clip.hf_model import HFTextEncoder
from open_clip.model import CustomTextCLIP
from open_clip.tokenizer import HFTokenizer
from oracles.models.tiny import randomise, tiny_config, tiny_preprocessing, tokenizer

from otpt.backbones import Backbone, ClipBackbone


def wrap(model: Any, own_tokenizer: Any = None, precision: str = "float32") -> Backbone:
    options = {"name": "t", "architecture": "t", "device": torch.device("cpu"), "precision": precision}
    return ClipBackbone(model, own_tokenizer or tokenizer(), tiny_preprocessing(), **options)


def custom_text(**text: Any) -> Any:
    config = tiny_config()
    config["text_cfg"] |= text
    return randomise(CustomTextCLIP(**config))


def siglip(precision: str = "float32") -> Backbone:
    return wrap(
        custom_text(no_causal_mask=True, pool_type="last", proj_bias=True, context_length=16), precision=precision
    )


def coca(precision: str = "float32") -> Backbone:
    config = tiny_config()
    config["text_cfg"] |= {"embed_cls": True, "output_tokens": True, "context_length": 76}
    config["vision_cfg"] |= {"output_tokens": True, "attentional_pool": True, "attn_pooler_heads": 2}
    multimodal = {"context_length": 76, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1}
    model = CoCa(**config, multimodal_cfg={**multimodal, "attn_pooler_heads": 2})
    return wrap(randomise(model), precision=precision)


def bert(folder: Path, precision: str = "float32") -> Backbone:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "photo", "of", "x", ".", "cat", "red", "panda", "2012"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=24,
    )  # fmt: skip
    model = CustomTextCLIP(**tiny_config())
    model.text = HFTextEncoder("", output_dim=32, config=config, pooler_type="mean_pooler", proj_type="linear")
    return wrap(randomise(model), HFTokenizer(str(folder), context_length=24), precision)
