"""MedCLIP-ViT: a Swin transformer for chest X-rays and Bio_ClinicalBERT, from the published file.

``medclip:FOLDER`` (or ``medclip:FILE``) reads ``pytorch_model.bin`` of the unpacked ``medclip-vit-pretrained.zip``:

    vision_model.model.*              Swin-tiny; pooled output, 768
    vision_model.projection_head.weight    (512, 768), no bias
    text_model.model.*                Bio_ClinicalBERT
    text_model.projection_head.weight      (512, 768), no bias
    logit_scale                       (), the logarithm of the scale

The sizes of both towers are read from the weights. Only tensors are read: no code of the file is run. BERT's vocabulary
is ``vocab.txt`` next to the weights if it exists, else that of ``emilyalsentzer/Bio_ClinicalBERT`` on the hub.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from otpt.backbones.checkpoints import SUFFIXES, read_checkpoint
from otpt.backbones.hub import hub_file, quiet_transformers
from otpt.backbones.sources import Parts, register_source
from otpt.errors import OtptError

if TYPE_CHECKING:
    from open_clip.tokenizer import HFTokenizer

CONTEXT_LENGTH = 25
"""Tokens a text is padded to. The pooling averages over padding too, so that a feature depends on it."""

BERT_REPOSITORY = "emilyalsentzer/Bio_ClinicalBERT"
IMAGE_SIZE = 224
PREPROCESSING = {"mean": 3 * (0.5862785803043838,), "std": 3 * (0.27950088968644304,), "resize_mode": "longest"}
"""MedCLIP's own: one grey mean and deviation, the image padded to a square. BAPLe takes CLIP's numbers instead."""

_HEAD_WIDTH = 64  # of BERT; no shape of the weights says it
_INDEX_BUFFERS = ("position_ids", "relative_position_index")


class SwinTower(nn.Module):
    """Pixels (N, 3, S, S) → (N, D): Swin's pooled output, projected."""

    def __init__(self, swin: nn.Module, projection: Tensor) -> None:
        super().__init__()
        self.image_size = IMAGE_SIZE
        self.swin = swin
        self.projection = nn.Parameter(projection)

    def forward(self, pixels: Tensor) -> Tensor:
        pooled: Tensor = self.swin(pixels).pooler_output
        return pooled @ self.projection.mT


class BertTower(nn.Module):
    """Token ids (N, L) → (N, D).

    h = mean over (first block, second block, last block) of the mean over **all** L positions, padding included;
    the feature is P h. Padding is hidden from attention.
    """

    def __init__(self, bert: Any, projection: Tensor, padding: int = 0) -> None:
        super().__init__()
        self.context_length = CONTEXT_LENGTH
        self.transformer = bert
        self.projection = nn.Parameter(projection)
        self._padding = padding

    def forward(self, ids: Tensor) -> Tensor:
        states = self.transformer(
            input_ids=ids, attention_mask=(ids != self._padding).long(), output_hidden_states=True
        ).hidden_states
        pooled: Tensor = torch.stack([states[1], states[2], states[-1]], dim=1).mean(dim=(1, 2))
        return pooled @ self.projection.mT


class MedClip(nn.Module):
    """The two sides and the scale, under the names that :class:`otpt.backbones.Backbone` asks for."""

    def __init__(self, visual: SwinTower, text: BertTower, logit_scale: Tensor) -> None:
        super().__init__()
        self.visual = visual
        self.text = text
        self.logit_scale = nn.Parameter(logit_scale.reshape(()))

    def encode_text(self, ids: Tensor, normalize: bool = False) -> Tensor:
        """Text features (N, D)."""
        features: Tensor = self.text(ids)
        return nn.functional.normalize(features, dim=-1) if normalize else features


def load_medclip(path: str | Path, quick_gelu: bool | None = None) -> Parts:
    """The parts of a MedCLIP-ViT folder or weights file."""
    path = Path(os.path.expanduser(path))
    file = path if path.suffix in SUFFIXES else path / "pytorch_model.bin"
    if not os.path.isfile(file):
        raise OtptError(
            f"There are no weights of MedCLIP-ViT at {str(file)!r}; expected the unpacked medclip-vit-pretrained.zip."
        )
    try:
        import transformers
    except ImportError:
        raise OtptError("MedCLIP needs transformers, which is not installed: pip install 'otpt[hf]'.") from None
    stored = read_checkpoint(file).state
    state = {n: tensor.float() for n, tensor in stored.items() if n.rsplit(".", 1)[-1] not in _INDEX_BUFFERS}
    swin, bert = _below(state, "vision_model.model."), _below(state, "text_model.model.")
    try:
        model = MedClip(
            SwinTower(
                _filled(transformers.SwinModel, transformers.SwinConfig(**_swin_sizes(swin)), swin),
                state["vision_model.projection_head.weight"],
            ),
            BertTower(
                _filled(transformers.BertModel, transformers.BertConfig(**_bert_sizes(bert)), bert),
                state["text_model.projection_head.weight"],
            ),
            state["logit_scale"],
        )
    except (KeyError, IndexError, ValueError) as error:
        raise OtptError(f"The weights in {str(file)!r} are not MedCLIP-ViT's: {error}.") from None
    return Parts(model, _tokenizer(file.parent), dict(PREPROCESSING), "MedCLIP-ViT")


def _below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _swin_sizes(state: dict[str, Tensor]) -> dict[str, Any]:
    """The configuration that the shapes of a Swin's weights imply."""
    patches = state["embeddings.patch_embeddings.projection.weight"]
    tables = {n: t for n, t in state.items() if n.endswith("relative_position_bias_table")}
    stages = [[t for n, t in tables.items() if n.startswith(f"encoder.layers.{i}.")] for i in range(len(tables))]
    stages = [stage for stage in stages if stage]
    hidden = state["encoder.layers.0.blocks.0.intermediate.dense.weight"].shape
    return {
        "image_size": IMAGE_SIZE,
        "patch_size": patches.shape[-1],
        "embed_dim": patches.shape[0],
        "depths": [len(stage) for stage in stages],
        "num_heads": [stage[0].shape[1] for stage in stages],
        "window_size": (round(stages[0][0].shape[0] ** 0.5) + 1) // 2,
        "mlp_ratio": hidden[0] / hidden[1],
    }


def _bert_sizes(state: dict[str, Tensor]) -> dict[str, Any]:
    """The configuration that the shapes of a BERT's weights imply; heads are 64 wide in all of them."""
    vocabulary, width = state["embeddings.word_embeddings.weight"].shape
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": len({n.split(".")[2] for n in state if n.startswith("encoder.layer.")}),
        "num_attention_heads": max(width // _HEAD_WIDTH, 1),
        "intermediate_size": state["encoder.layer.0.intermediate.dense.weight"].shape[0],
        "max_position_embeddings": state["embeddings.position_embeddings.weight"].shape[0],
        "type_vocab_size": state["embeddings.token_type_embeddings.weight"].shape[0],
    }


def _filled(kind: Any, config: Any, state: dict[str, Tensor]) -> Any:
    """A tower of transformers with these weights. It renames them itself where its own names have changed since."""
    with quiet_transformers():
        model, report = kind.from_pretrained(
            None, config=config, state_dict=state, output_loading_info=True, ignore_mismatched_sizes=True
        )
    wrong = {key: report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if report[key]}
    if wrong:
        raise ValueError(f"{kind.__name__}: {'; '.join(f'{k} {sorted(map(str, n))[:3]}' for k, n in wrong.items())}")
    return model


def _tokenizer(folder: Path) -> HFTokenizer:
    from open_clip.tokenizer import HFTokenizer

    vocabulary = folder / "vocab.txt"
    if not os.path.isfile(vocabulary):
        vocabulary = hub_file(BERT_REPOSITORY, "vocab.txt", what="MedCLIP's vocabulary (vocab.txt next to the weights)")
    # transformers picks the kind of tokenizer by a configuration, which the published folder does not have
    with tempfile.TemporaryDirectory() as place, quiet_transformers():
        (Path(place) / "vocab.txt").write_bytes(vocabulary.read_bytes())
        (Path(place) / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
        return HFTokenizer(place, context_length=CONTEXT_LENGTH)


register_source(
    "medclip:FOLDER", "MedCLIP-ViT as published: pytorch_model.bin, and vocab.txt if available", load_medclip
)
