"""A hash of (architecture, weights), stored with caches and results so that they are never mixed up."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import nn

_FACTS = ("num_heads", "eps", "stride", "padding", "approximate", "pool_type", "text_pool_type", "final_ln_after_pool")
"""Attributes that change what a module computes and that its weights do not show."""


def fingerprint(model: nn.Module) -> str:
    """24 hexadecimal digits of a SHA-256 over the architecture (canonical JSON) and every tensor of the state dict.

    A tensor enters with name, shape and its values as float32 (integers as int64), so the same weights give the same
    fingerprint from a float16 archive, a state dict or safetensors, and in any precision.
    """
    digest = hashlib.sha256(json.dumps(architecture_facts(model), sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        kind = torch.float32 if tensor.is_floating_point() else torch.int64
        digest.update(f"\n{name}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.detach().to("cpu", kind).contiguous().reshape(-1).numpy().data)
    return digest.hexdigest()[:24]


def architecture_facts(model: nn.Module) -> dict[str, Any]:
    """What the model computes beyond its weights: heads, eps, strides, pooling, activations, causal masks.

    Read from the built model and not from a configuration file, so that a default left out makes no difference.
    """
    facts: dict[str, Any] = {}
    for name, module in model.named_modules():
        values = ((key, getattr(module, key, None)) for key in _FACTS)
        own: dict[str, Any] = {key: value for key, value in values if isinstance(value, (int, float, str, tuple))}
        if getattr(module, "attn_mask", None) is not None:
            own["masked"] = True
        if not list(module.children()) and not list(module.parameters(recurse=False)):
            own["kind"] = type(module).__name__
        if own:
            facts[name] = own
    return facts
