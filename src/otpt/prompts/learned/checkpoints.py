"""Learned prompts from and to files: checkpoints of Dassl (CoOp, CoCoOp, MaPLe) and safetensors.

| kind | tensors |
|---|---|
| CoOp | ``ctx`` (n, W), or (C, n, W) |
| CoCoOp | ``ctx`` (n, W), ``meta_net.linear1.weight`` (H, D), ``.bias``, |
| | ``meta_net.linear2.weight`` (W, H), ``.bias`` |
| MaPLe | after ``prompt_learner.``: ``ctx`` (n, W), ``proj.weight`` (W_v, W), ``proj.bias``, |
| | ``compound_prompts_text.i`` (n, W), ``compound_prompt_projections.i.weight`` (W_v, W), ``.bias`` |

Other tensors are ignored: ``token_prefix`` and ``token_suffix`` are the class names of the training, and the towers in
a file of MaPLe are those of CLIP.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from otpt.errors import OtptError
from otpt.files import parse_json
from otpt.prompts.learned.archives import check_values, expect_tensors, read_tensors
from otpt.prompts.learned.contexts import CocoopContext, CoopContext, LearnedPrompt, MaplePrompts

_SHOWN = 6


def read_learned(path: str | Path) -> LearnedPrompt:
    """The learned prompt of a file; its tensors determine the kind."""
    tensors, notes = read_tensors(Path(path))
    own = {name.removeprefix("prompt_learner."): tensor.float() for name, tensor in tensors.items() if _is_own(name)}
    check_values(path, own)
    images = _names(notes, "images", path) or ()
    if any(name.startswith(("compound_prompt", "proj.")) for name in own):
        return _maple(own, path, images)
    if any(name.startswith("meta_net.") for name in own):
        return _cocoop(own, path, images)
    if "ctx" not in own:
        held = list(tensors) or ["no tensor"]
        shown = ", ".join(held[:_SHOWN]) + (", …" if len(held) > _SHOWN else "")
        raise OtptError(f"{_file(path)} is not a learned prompt: the tensor ctx is missing; it holds {shown}.")
    if own["ctx"].ndim != 3:
        expect_tensors(path, own, {"ctx": (None, None)})
    return CoopContext(own["ctx"], _names(notes, "class_names", path), images=images)


def write_learned(path: str | Path, learned: LearnedPrompt) -> bytes:
    """The bytes of a file: safetensors if ``path`` ends so, else a checkpoint as Dassl's trainers load it."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in learned.state().items()}
    class_names = learned.class_names if isinstance(learned, CoopContext) else None
    notes = {} if class_names is None else {"class_names": json.dumps(class_names, ensure_ascii=False)}
    if learned.images:
        notes["images"] = json.dumps(learned.images)
    if Path(path).suffix == ".safetensors":
        return save(state, notes)
    buffer = io.BytesIO()
    torch.save({"state_dict": state, "epoch": 0, "val_result": None, **notes}, buffer)
    return buffer.getvalue()


def _is_own(name: str) -> bool:
    inner = name.removeprefix("prompt_learner.")
    return inner == "ctx" or inner.startswith(("proj.", "compound_prompt", "meta_net."))


def _maple(own: Mapping[str, Tensor], path: str | Path, images: tuple[str, ...]) -> MaplePrompts:
    counts = [_count(own, "compound_prompts_text."), _count(own, "compound_prompt_projections.")]
    deep = range(max(counts))
    texts = ["ctx", *(f"compound_prompts_text.{i}" for i in deep)]
    couplings = ["proj", *(f"compound_prompt_projections.{i}" for i in deep)]
    context, weight = own.get("ctx"), own.get("proj.weight")
    n, width = context.shape if context is not None and context.ndim == 2 else (None, None)
    visual = len(weight) if weight is not None and weight.ndim == 2 else None
    expected: dict[str, tuple[int | None, ...]] = dict.fromkeys(texts, (n, width))
    expected |= {f"{name}.weight": (visual, width) for name in couplings}
    expected |= {f"{name}.bias": (visual,) for name in couplings}
    expect_tensors(path, own, expected)
    stacks = texts, [f"{name}.weight" for name in couplings], [f"{name}.bias" for name in couplings]
    text, weights, biases = (torch.stack([own[name] for name in names]) for names in stacks)
    return MaplePrompts(text, weights, biases, images=images)


def _count(own: Mapping[str, Tensor], start: str) -> int:
    """The number of deep layers by their names; a gap in the numbering means that one is missing."""
    numbers = {name.removeprefix(start).split(".")[0] for name in own if name.startswith(start)}
    return min(len(numbers), max((int(number) + 1 for number in numbers if number.isdecimal()), default=0))


def _cocoop(own: Mapping[str, Tensor], path: str | Path, images: tuple[str, ...]) -> CocoopContext:
    context, inner = own.get("ctx"), own.get("meta_net.linear1.weight")
    width = context.shape[-1] if context is not None and context.ndim == 2 else None
    hidden = len(inner) if inner is not None and inner.ndim == 2 else None
    names: dict[str, tuple[int | None, ...]] = {
        "ctx": (None, width),
        "meta_net.linear1.weight": (hidden, None),
        "meta_net.linear1.bias": (hidden,),
        "meta_net.linear2.weight": (width, hidden),
        "meta_net.linear2.bias": (width,),
    }
    expect_tensors(path, own, names)
    return CocoopContext(*(own[name] for name in names), images=images)


def _file(path: str | Path) -> str:
    return f"The file {str(path)!r}"


def _names(notes: Mapping[str, str], key: str, path: str | Path) -> tuple[str, ...] | None:
    """A list of texts among the notes; None if it is not there."""
    if key not in notes:
        return None
    try:
        names = parse_json(notes[key])
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise OtptError(f"{_file(path)} is damaged: its {key.replace('_', ' ')} cannot be read.")
    return tuple(names)
