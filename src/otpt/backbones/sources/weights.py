"""Putting a state dict into a model, and saying exactly what does not fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otpt.errors import OtptError

_SHOWN = 3  # names of keys listed in an error, of each kind


def load_weights(
    model: Any,
    state: dict[str, Tensor],
    *,
    source: str,
    architecture: str,
    resize: bool = False,
    remedy: str = "take weights and configuration from the same model",
) -> None:
    """Copy ``state`` into ``model`` (float32); ``OtptError`` if keys or shapes differ or a value is not finite.

    ``resize`` lets open_clip interpolate position embeddings, for weights whose own configuration asks for it.
    """
    state = _as_this_model_names_them(model, dict(state))
    if resize:
        from open_clip.model import resize_pos_embed, resize_text_pos_embed

        try:
            resize_pos_embed(state, model)
            resize_text_pos_embed(state, model)
        except Exception as error:  # whatever tensors of other shapes make of it
            raise OtptError(
                f"The position embeddings in {source} cannot be resized for the architecture {architecture}: {error}."
            ) from error
    misfit = _misfit(model.state_dict(), state)
    if misfit:
        raise OtptError(f"The weights in {source} do not fit the architecture {architecture}: {misfit}; {remedy}.")
    _check_finite(state, source)
    with torch.no_grad():
        model.load_state_dict(state, strict=True)


def _as_this_model_names_them(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The renamings open_clip itself applies when it loads older or third-party files."""
    from open_clip.convert import convert_state_dict
    from open_clip.model import convert_to_custom_text_state_dict

    state = convert_state_dict(model, state)
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    elif "text.positional_embedding" in state and hasattr(model, "positional_embedding"):
        state = {name.removeprefix("text."): tensor for name, tensor in state.items()}
    for name in ("logit_scale", "logit_bias"):
        own = getattr(model, name, None)
        if own is not None and name in state and state[name].numel() == own.numel():
            state[name] = state[name].reshape(own.shape)
    if getattr(model, "logit_bias", None) is not None and "logit_scale" in state:
        state.setdefault("logit_bias", torch.zeros_like(model.logit_bias))
    state.pop("text.transformer.embeddings.position_ids", None)
    return state


def _misfit(own: dict[str, Tensor], state: dict[str, Tensor]) -> str:
    """Which tensors a model has and a state has not, the other way round, and which have another shape."""
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    misshapen = [
        f"{name} is {_shape(state[name])}, expected {_shape(own[name])}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    found = [
        f"{len(names)} {kind} ({', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''})"
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
        if names
    ]
    return f"of its {len(own)} tensors {'; '.join(found)}" if found else ""


def _check_finite(state: dict[str, Tensor], source: str) -> None:
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise OtptError(
                f"The weights in {source} are damaged: {bad} of {tensor.numel()} values of {name} are not finite."
            )


def _shape(tensor: Tensor) -> str:
    return "×".join(str(side) for side in tensor.shape) or "a scalar"
