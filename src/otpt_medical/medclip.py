"""MedCLIP-ViT: a Swin transformer for chest X-rays and Bio_ClinicalBERT, from the published file.

``medclip:FOLDER`` (or ``medclip:FILE``) reads ``pytorch_model.bin`` of the unpacked ``medclip-vit-pretrained.zip``:

    vision_model.model.*                 Swin-tiny; pooled output, 768
    vision_model.projection_head.weight  (512, 768), no bias
    text_model.model.*                   Bio_ClinicalBERT
    text_model.projection_head.weight    (512, 768), no bias
    logit_scale                          (), the logarithm of the scale

BERT's vocabulary is ``vocab.txt`` next to the weights, else that of ``emilyalsentzer/Bio_ClinicalBERT`` on the hub.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from open_clip.tokenizer import HFTokenizer
from torch import Tensor, nn

from otpt.backbones import Parts, hub_file, read_checkpoint, register_source
from otpt.backbones.checkpoints import SUFFIXES
from otpt.backbones.sources import quiet_transformers
from otpt.errors import OtptError

CONTEXT_LENGTH = 25
"""Tokens a text is padded to. The pooling averages over padding too, so that a feature depends on it."""

BERT_REPOSITORY = "emilyalsentzer/Bio_ClinicalBERT"
IMAGE_SIZE = 224
PREPROCESSING = {"mean": 3 * (0.5862785803043838,), "std": 3 * (0.27950088968644304,), "resize_mode": "longest"}
"""One grey mean and deviation, the image padded to a square. BAPLe takes CLIP's numbers instead."""

SWIN: dict[str, object] = {}
BERT: dict[str, object] = {"vocab_size": 28996}
"""Sizes where they differ from the defaults of transformers: Swin-tiny, and BERT-base with a cased vocabulary."""

_INDEX_BUFFERS = ("position_ids", "relative_position_index")


class PretrainedModel(Protocol):
    """Class of models of transformers."""

    __name__: str

    def from_pretrained(self, name: None, **options: object) -> tuple[nn.Module, Mapping[str, Sequence[object]]]:
        """Return a model and a report on its weights, with ``output_loading_info=True``."""


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

    def __init__(self, bert: nn.Module, projection: Tensor, padding: int = 0) -> None:
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
    """Both towers and the scale, under the names that :class:`otpt.backbones.Backbone` expects."""

    def __init__(self, visual: SwinTower, text: BertTower, logit_scale: Tensor) -> None:
        super().__init__()
        self.visual = visual
        self.text = text
        self.logit_scale = nn.Parameter(logit_scale.reshape(()))

    def encode_text(self, ids: Tensor, normalize: bool = False) -> Tensor:
        """Encode token ids to text features (N, D)."""
        features: Tensor = self.text(ids)
        return nn.functional.normalize(features, dim=-1) if normalize else features


def load_medclip(path: str | Path, quick_gelu: bool | None = None) -> Parts:
    """Load a MedCLIP-ViT folder or weights file."""
    path = Path(path).expanduser()
    file = path if path.suffix in SUFFIXES else path / "pytorch_model.bin"
    try:
        import transformers
    except ImportError:
        raise OtptError("MedCLIP needs transformers, which is not installed: pip install 'otpt[hf]'.") from None
    stored = read_checkpoint(file).state
    state = {n: tensor.float() for n, tensor in stored.items() if n.rsplit(".", 1)[-1] not in _INDEX_BUFFERS}
    swin, bert = _below(state, "vision_model.model."), _below(state, "text_model.model.")
    try:
        image = _filled(transformers.SwinModel, transformers.SwinConfig(**SWIN), swin)
        text = _filled(transformers.BertModel, transformers.BertConfig(**BERT), bert)
        model = MedClip(
            SwinTower(image, state["vision_model.projection_head.weight"]),
            BertTower(text, state["text_model.projection_head.weight"]),
            state["logit_scale"],
        )
    except (KeyError, ValueError) as error:
        raise OtptError(f"The weights in {str(file)!r} are not MedCLIP-ViT's: {error}.") from None
    return Parts(model, _tokenizer(file.parent), dict(PREPROCESSING), "MedCLIP-ViT")


def _below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _filled(kind: PretrainedModel, config: object, state: dict[str, Tensor]) -> nn.Module:
    """Return a transformers tower with these weights; ``from_pretrained`` maps legacy names."""
    with quiet_transformers():
        model, report = kind.from_pretrained(
            None, config=config, state_dict=state, output_loading_info=True, ignore_mismatched_sizes=True
        )
    wrong = {key: report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if report[key]}
    if wrong:
        raise ValueError(f"{kind.__name__}: {'; '.join(f'{k} {sorted(map(str, n))[:3]}' for k, n in wrong.items())}")
    return model


def _tokenizer(folder: Path) -> HFTokenizer:
    vocabulary = folder / "vocab.txt"
    if not vocabulary.is_file():
        vocabulary = hub_file(BERT_REPOSITORY, "vocab.txt", what="MedCLIP's vocabulary (vocab.txt next to the weights)")
    # transformers picks the kind of tokenizer by a configuration, which the published folder does not have
    with tempfile.TemporaryDirectory() as place, quiet_transformers():
        (Path(place) / "vocab.txt").write_bytes(vocabulary.read_bytes())
        (Path(place) / "config.json").write_text(json.dumps({"model_type": "bert"}), encoding="utf-8")
        return HFTokenizer(place, context_length=CONTEXT_LENGTH)


register_source(
    "medclip:FOLDER", "MedCLIP-ViT as published: pytorch_model.bin, and vocab.txt if available", load_medclip
)
