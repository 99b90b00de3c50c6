"""Adapter of dual encoders of transformers, with ``get_text_features`` and ``get_image_features``.

MetaCLIP 2, Chinese-CLIP, AltCLIP, ALIGN, AIMv2, BLIP, CLIPSeg, GroupViT, OWL-ViT, TIPSv2, SigLIP 2 NaFlex, vision-text
dual encoders, and models with code of their own that are in memory. Nothing is inferred from names of layers: the token
embedding is the one that receives the token ids in a forward pass, and the logits of an image and two texts are
compared with the ``logits_per_image`` of the original.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Protocol, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from otpt.backbones.fast import check_pixels
from otpt.backbones.hf_tokenizers import PreparedTokenizer
from otpt.backbones.modules import Tokenizer
from otpt.backbones.preprocessing import read_preprocessing
from otpt.backbones.sources import Parts
from otpt.backbones.text_tower import tokenize
from otpt.errors import OtptError

_TEXTS = ("a photo of a cat.", "x")
"""Texts for the comparison with the original."""
_TOLERANCE = 1e-4
"""Maximum difference between cosines of the adapter and of the original."""
_UNMASKED = ("siglip", "siglip2")
"""Types of models whose texts are padded, but not masked, in training."""


class TowerConfig(Protocol):
    """Configuration of a tower; other attributes are possible."""

    max_position_embeddings: int
    image_size: int
    patch_size: int
    num_patches: int


class DualConfig(Protocol):
    """Configuration of a dual encoder."""

    model_type: str
    name_or_path: str
    text_config: TowerConfig
    vision_config: TowerConfig


class _Pooled(Protocol):
    """Output of a tower in transformers 5; version 4 returns the features."""

    pooler_output: Tensor


class DualModel(Protocol):
    """Model of transformers with two towers."""

    config: DualConfig
    get_text_features: Callable[..., Tensor | _Pooled]
    get_image_features: Callable[..., Tensor | _Pooled]

    def __call__(self, **inputs: Tensor) -> Mapping[str, Tensor]:
        """Return ``logits_per_image`` and more."""


def is_dual_encoder(model: object) -> bool:
    """Return whether a model has the two methods of transformers' dual encoders."""
    methods = ("get_text_features", "get_image_features")
    return all(callable(getattr(model, name, None)) for name in methods)


class DualEncoder(nn.Module):
    """Dual encoder of transformers with open_clip's interface and shared weights.

    Args:
        model: the original.
        text: its text tower.
        image_size: side of the input images in pixels.
    """

    logit_scale: Tensor
    logit_bias: Tensor | None

    def __init__(self, model: nn.Module, text: TextSide, image_size: int) -> None:
        super().__init__()
        self.visual = ImageSide(model, image_size)
        self.text = text
        self.register_buffer("logit_scale", _log_scale(model), persistent=False)
        bias = getattr(model, "logit_bias", None)
        self.register_buffer("logit_bias", None if bias is None else bias.detach().clone(), persistent=False)

    def encode_text(self, ids: Tensor) -> Tensor:
        """Return text features (N, D) of token ids (N, L)."""
        features: Tensor = self.text(ids)
        return features


class ImageSide(nn.Module):
    """Image tower of a dual encoder: pixels (N, 3, S, S) → features (N, D).

    SigLIP 2 NaFlex takes patches: those of the square image, row by row.
    """

    def __init__(self, model: nn.Module, image_size: int) -> None:
        super().__init__()
        self.model, self.image_size = model, image_size
        vision = getattr(cast(DualModel, model).config, "vision_config", None)
        self.family = "vit" if hasattr(vision, "patch_size") and hasattr(vision, "num_attention_heads") else "other"
        self._patch = _patch_of_naflex(model)

    def forward(self, pixels: Tensor) -> Tensor:
        model = cast(DualModel, self.model)
        if self._patch is None:
            return _features(model.get_image_features(pixel_values=pixels))
        return _features(model.get_image_features(**naflex_inputs(pixels, self._patch)))


class _NaflexInputs(TypedDict):
    """Inputs of SigLIP 2 NaFlex."""

    pixel_values: Tensor
    pixel_attention_mask: Tensor
    spatial_shapes: Tensor


def naflex_inputs(pixels: Tensor, patch: int) -> _NaflexInputs:
    """Cut square images (N, 3, S, S) into patches (N, (S/p)², 3p²), with the channels last within a patch."""
    count, channels, side, _ = pixels.shape
    rows = side // patch
    patches = pixels.reshape(count, channels, rows, patch, rows, patch).permute(0, 2, 4, 3, 5, 1)
    return {
        "pixel_values": patches.reshape(count, rows * rows, patch * patch * channels),
        "pixel_attention_mask": torch.ones(count, rows * rows, dtype=torch.long, device=pixels.device),
        "spatial_shapes": torch.full((count, 2), rows, dtype=torch.long, device=pixels.device),
    }


def _patch_of_naflex(model: nn.Module) -> int | None:
    """Return the side of the patches of a model whose input are patches, or None."""
    takes_patches = "spatial_shapes" in inspect.signature(cast(DualModel, model).get_image_features).parameters
    return int(cast(DualModel, model).config.vision_config.patch_size) if takes_patches else None


class TextSide(nn.Module):
    """Text tower of a dual encoder: token ids (N, L) → features (N, D).

    Args:
        model: the original.
        context_length: number L of tokens of a padded text.
        padding: id of the padding.
        padded_by_end: whether the padding is the end token, whose first occurrence belongs to the text.
    """

    def __init__(self, model: nn.Module, context_length: int, padding: int, *, padded_by_end: bool) -> None:
        super().__init__()
        self._shared = (model,)  # a tuple, because the image tower registers the module
        self.context_length = context_length
        self._padding, self._padded_by_end = padding, padded_by_end
        dual = cast(DualModel, model)
        takes_mask = "attention_mask" in inspect.signature(dual.get_text_features).parameters
        self.masked = takes_mask and getattr(dual.config, "model_type", "") not in _UNMASKED
        self.token_embedding = None
        ids = torch.full((1, context_length), padding)
        object.__setattr__(self, "token_embedding", _observed_embedding(model, self, ids))

    def inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the inputs of the original for token ids (N, L): the ids and, if it masks padding, the mask."""
        if not self.masked:
            return {"input_ids": ids}
        padding = (ids == self._padding).flip(1).cumprod(1).sum(1, keepdim=True)
        length = ids.shape[1] - padding + int(self._padded_by_end)
        mask = torch.arange(ids.shape[1], device=ids.device) < length
        return {"input_ids": ids, "attention_mask": mask.long()}

    def forward(self, ids: Tensor) -> Tensor:
        return _features(cast(DualModel, self._shared[0]).get_text_features(**self.inputs(ids)))


def _features(output: Tensor | _Pooled) -> Tensor:
    """Return the features of a tower's output; version 5 of transformers returns them as ``pooler_output``."""
    return output if isinstance(output, Tensor) else output.pooler_output


def _log_scale(model: nn.Module) -> Tensor:
    """Return the logarithm of the factor of cosines in the logits."""
    temperature = getattr(model, "temperature", None)
    if isinstance(temperature, Tensor):  # ALIGN, TIPSv2
        return -temperature.detach().float().log()
    scale = getattr(model, "logit_scale", None)
    if not isinstance(scale, Tensor):
        raise OtptError(f"The {type(model).__name__} has neither logit_scale nor temperature; expected a dual encoder.")
    limit = getattr(model, "max_log_logit_scale", math.inf)  # AIMv2
    return scale.detach().float().clamp(max=limit).clone()


def _observed_embedding(model: nn.Module, text: TextSide, ids: Tensor) -> nn.Embedding:
    """Return the embedding that receives the token ids in a forward pass."""
    receivers: list[nn.Embedding] = []

    def observe(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if args and args[0].shape == ids.shape and torch.equal(args[0], ids):
            receivers.append(cast(nn.Embedding, module))

    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    handles = [module.register_forward_pre_hook(observe) for module in embeddings]
    try:
        with torch.no_grad():
            text(ids)
    finally:
        for handle in handles:
            handle.remove()
    if not receivers:
        raise OtptError(f"The text tower of the {type(model).__name__} has no token embedding (torch.nn.Embedding).")
    return max(receivers, key=lambda module: module.num_embeddings)


def dual_encoder_parts(model: nn.Module, tokenizer: Tokenizer, processor: object, name: str) -> Parts:
    """Return the parts of a backbone, with a copy of a dual encoder in memory.

    Args:
        model: model of transformers, or with the same methods.
        tokenizer: prepared tokenizer, or any function from texts to token ids.
        processor: image processor.
        name: name of the model.
    """
    copy = deepcopy(model).float().cpu().eval().requires_grad_(False)
    length = _context_length(copy, tokenizer)
    padding = int(tokenize(tokenizer, [""], length)[0, -1])
    end = getattr(getattr(tokenizer, "tokenizer", None), "eos_token_id", None)
    try:
        text = TextSide(copy, length, padding, padded_by_end=end == padding)
        preprocessing = read_preprocessing(processor, _image_size(copy, processor))
        adapted = DualEncoder(copy, text, preprocessing.size)
        _compare(adapted, copy, tokenizer)
    except OtptError:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        raise _refusal(model, f"{type(error).__name__}: {error}") from error
    return Parts(adapted, tokenizer, preprocessing, name)


def _compare(adapted: DualEncoder, original: nn.Module, tokenizer: Tokenizer) -> None:
    """Compare the logits of an image and two texts with those of the original; raise if they differ."""
    ids = tokenize(tokenizer, _TEXTS, adapted.text.context_length)
    pixels = check_pixels(adapted.visual.image_size, torch.device("cpu"), torch.float32)
    inputs: dict[str, Tensor] = adapted.text.inputs(ids)
    if isinstance(tokenizer, PreparedTokenizer) and adapted.text.masked:  # the mask of the tokenizer itself
        encoded = tokenizer.encode(_TEXTS, adapted.text.context_length)
        inputs |= {key: encoded[key] for key in ("input_ids", "attention_mask") if key in encoded}
    patch = _patch_of_naflex(original)
    images = {"pixel_values": pixels} if patch is None else dict(naflex_inputs(pixels, patch))
    with torch.no_grad():
        texts, image = adapted.encode_text(ids), adapted.visual(pixels)
        if texts.ndim != 2 or texts.shape[1:] != image.shape[1:]:
            shapes = f"{tuple(texts.shape)} of 2 texts and {tuple(image.shape)} of an image"
            raise _refusal(original, f"its features have the shapes {shapes}, not (2, D) and (1, D)")
        expected = cast(DualModel, original)(**inputs, **cast(dict[str, Tensor], images))["logits_per_image"]
    scale = float(adapted.logit_scale.exp().mean())
    bias = 0.0 if adapted.logit_bias is None else float(adapted.logit_bias.mean())
    logits = scale * F.normalize(image, dim=-1) @ F.normalize(texts, dim=-1).T + bias
    difference = float((logits - expected).abs().max()) if logits.shape == expected.shape else math.nan
    if not difference <= _TOLERANCE * max(scale, 1):
        shown = [
            "[" + ", ".join(f"{value:.5g}" for value in row.flatten().tolist()) + "]" for row in (logits, expected)
        ]
        raise _refusal(original, f"its logits_per_image of a test image are {shown[1]}, ours {shown[0]}")


def _refusal(model: nn.Module, reason: str) -> OtptError:
    return OtptError(
        f"The {type(model).__name__} does not work as a dual encoder of images and texts: {reason.rstrip('.')}. Give "
        "its towers open_clip's interface (visual, encode_text, logit_scale, a token embedding) and pass that object "
        "to otpt.load."
    )


def _image_size(model: nn.Module, processor: object) -> int:
    """Return the side of the input images, or 0 if the processor decides."""
    vision = getattr(cast(DualModel, model).config, "vision_config", None)
    patch = _patch_of_naflex(model)
    if patch is not None:
        count = int(getattr(processor, "max_num_patches", 0) or cast(TowerConfig, vision).num_patches)
        return math.isqrt(count) * patch
    is_vit = hasattr(vision, "patch_size")
    return int(getattr(vision, "image_size", 0)) if is_vit else 0  # convolutions (ALIGN) take any size


def _context_length(model: nn.Module, tokenizer: Tokenizer) -> int:
    """Return the smaller of the numbers of positions of the text tower and of tokens of the tokenizer."""
    config = getattr(cast(DualModel, model).config, "text_config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None:
        tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        offsets = [table.padding_idx for table in tables if table.num_embeddings == positions]
        positions -= 1 + max(
            (offset for offset in offsets if offset is not None), default=-1
        )  # RoBERTa counts from there
    lengths = [int(length) for length in (positions, getattr(tokenizer, "context_length", None)) if length]
    if not lengths:
        raise OtptError(
            f"The context length of the {type(model).__name__} is unknown; set tokenizer.model_max_length to the "
            "number of tokens in training."
        )
    return min(lengths)
