"""Checkpoints of backbones: TorchScript archives, pickles that call functions, safetensors whose headers lie."""

from __future__ import annotations

import io
import json
import random
import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch

from otpt.backbones.sources.architectures import infer_config
from otpt.backbones.checkpoints import read_checkpoint
from torture.inputs import pickles
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import NUMBERS, damaged, deep_json, mutated, text

_NAMES = (
    "visual.proj",
    "visual.conv1.weight",
    "positional_embedding",
    "ln_final.weight",
    "text_projection",
    "logit_scale",
)


@cache
def _saved() -> list[bytes]:
    """Honest files of ``torch.save``, zip and legacy."""
    state = {name: torch.ones(2, 3) for name in _NAMES}
    found = []
    for content, new in ((state, True), ({"state_dict": state, "epoch": 3}, True), (state, False)):
        buffer = io.BytesIO()
        torch.save(content, buffer, _use_new_zipfile_serialization=new)
        found.append(buffer.getvalue())
    return found


def safetensors(rng: random.Random, names: tuple[str, ...] = _NAMES) -> tuple[bytes, str]:
    """A safetensors file whose header, lengths or offsets may lie."""
    header: Any = {name: {"dtype": "F32", "shape": [2, 2], "data_offsets": [16 * i, 16 * i + 16]} for i, name in
                   enumerate(names)}  # fmt: skip
    header["__metadata__"] = {"class_names": '["cat", "dog"]', "images": "[]"}
    choice = rng.random()
    if choice < 0.7:
        header = mutated(rng, header)
    if isinstance(header, dict) and choice > 0.5:
        for each in header.values():
            if isinstance(each, dict) and "shape" in each and rng.random() < 0.4:
                key = rng.choice(("shape", "data_offsets"))
                each[key] = [rng.choice(NUMBERS) for _ in range(rng.randrange(5))]
    head = deep_json(rng) if rng.random() < 0.03 else json.dumps(header)
    length = len(head.encode("utf-8", "replace"))
    if rng.random() < 0.15:
        length = rng.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
    data = struct.pack("<Q", length) + head.encode("utf-8", "replace") + bytes(16 * len(names))
    return data[: rng.randrange(len(data))] if rng.random() < 0.1 else data, "safetensors"


def torch_file(rng: random.Random, items: tuple[str, ...], *, script: bool) -> tuple[bytes, str]:
    """A zip of ``torch.save`` or ``torch.jit.save`` with hostile pickles, or tensors that lie."""
    records = {"0": bytes(rng.choice((16, 16, 16, 0, 3, 10**5))), "1": bytes(16)}
    choice = rng.random()
    if choice < 0.3:
        tree, what = b"\x80\x02" + pickles.call(rng) + b".", "a call"
    elif choice < 0.45:
        tree, what = pickles.bomb(rng)
    else:
        name = rng.choice(
            ("_rebuild_tensor_v2",) * 8 + ("_rebuild_parameter", "_rebuild_sparse_tensor", "_rebuild_qtensor")
        )
        key = rng.choice(("0", "0", "0", "1", "7", "../../../outside/secret.txt", "/etc/passwd", ""))
        values = {each: pickles.tensor(rng, key, name=name) for each in items}
        if rng.random() < 0.2:
            values[text(rng)] = pickles.call(rng)
        if rng.random() < 0.2:
            values[text(rng)] = pickles.plain(rng.choice((None, 3, "x", [1, 2], {"a": 1}, (1,), 1e9, b"x")))
        make = pickles.module if script else pickles.dictionary
        whole = make(values)
        if not script and rng.random() < 0.5:
            whole = pickles.dictionary({"state_dict": whole, "epoch": pickles.plain(3)})
        tree, what = b"\x80\x02" + whole + b".", "tensors"
    if rng.random() < 0.15:
        tree = damaged(rng, tree)[0]
    data = pickles.torch_zip(rng, tree, records, script=script)
    if rng.random() < 0.2:
        data = damaged(rng, data)[0]
    return data, f"{'TorchScript' if script else 'torch.save'} with {what}"


def any_checkpoint(rng: random.Random, items: tuple[str, ...]) -> tuple[bytes, str, str]:
    """Data, suffix and a few words."""
    choice = rng.random()
    if choice < 0.25:
        data, what = safetensors(rng, items)
        return data, ".safetensors", what
    if choice < 0.6:
        data, what = torch_file(rng, items, script=rng.random() < 0.5)
    elif choice < 0.75:
        data, what = damaged(rng, rng.choice(_saved()))
    elif choice < 0.85:
        data, what = b"\x80\x02" + pickles.call(rng) + b".", "a bare pickle with a call"
    elif choice < 0.93:
        data, what = pickles.bomb(rng)
        what = f"a bare pickle, a bomb of {what}"
    else:
        data, what = rng.randbytes(rng.choice((0, 1, 100))), "noise"
    return data, rng.choice((".pt", ".pth", ".bin", ".bin", ".safetensors")), what


def _checkpoint(rng: random.Random, given: Path) -> Input:
    data, suffix, what = any_checkpoint(rng, _NAMES)
    path = given / f"model{suffix}"
    path.write_bytes(data)

    def ask() -> object:
        found = read_checkpoint(path)
        return infer_config(found.state, str(path))

    return Input(what, ask)


def _prepare() -> None:
    import open_clip

    _saved()
    open_clip.list_models()


KINDS = [Kind("checkpoints", _checkpoint, _prepare)]
