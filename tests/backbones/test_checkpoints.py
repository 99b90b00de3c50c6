"""Checkpoint files: every format gives the same weights, and a bad file gives one clear sentence and runs nothing."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.models.tiny import openai_archive, tiny_clip
from safetensors.torch import save_file
from torch import Tensor

from otpt.backbones.checkpoints import _read_torchscript as read_torchscript
from otpt.backbones.checkpoints import read_checkpoint
from otpt.errors import OtptError


def state(kind: str = "vit", seed: int = 0) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tiny_clip(kind, seed, head_width=64).state_dict().items()}


@pytest.mark.slow
def test_archive_gives_what_torch_jit_gives(tmp_path: Path) -> None:
    openai_archive(tmp_path / "a.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torch.jit.load(str(tmp_path / "a.pt")).state_dict()
    found = read_torchscript(tmp_path / "a.pt")
    assert {"input_resolution", "context_length", "vocab_size"} <= set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    assert {name for name in found if not name.endswith("attn_mask")} == set(expected)
    assert found["visual.conv1.weight"].dtype == torch.float16
    checkpoint = read_checkpoint(tmp_path / "a.pt")
    assert checkpoint.openai
    assert set(checkpoint.state) == set(expected) - {"input_resolution", "context_length", "vocab_size"}


def test_views_of_one_memory_are_read_right(tmp_path: Path) -> None:
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(24.0).reshape(4, 6)
            self.register_buffer("whole", whole)
            self.register_buffer("columns", whole[1:, ::2])
            self.register_buffer("turned", whole.T)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.whole.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(Shared()), str(tmp_path / "s.pt"))
    found = read_torchscript(tmp_path / "s.pt")
    whole = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(found["columns"], whole[1:, ::2])
    assert torch.equal(found["turned"], whole.T)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.pt", torch.save),
        ("a.pth", lambda s, p: torch.save({"state_dict": s, "epoch": 3, "name": "run"}, p)),
        ("a.bin", lambda s, p: torch.save({f"module.{k}": v for k, v in s.items()}, p)),
        ("b.pt", lambda s, p: torch.save({"state_dict": {f"module.{k}": v for k, v in s.items()}}, p)),
        ("c.pt", lambda s, p: torch.save(s, p, _use_new_zipfile_serialization=False)),
        ("a.safetensors", save_file),
    ],
)
def test_state_dicts_in_every_wrapping(tmp_path: Path, name: str, write: Callable[[Any, Path], None]) -> None:
    original = state()
    write(original, tmp_path / name)
    checkpoint = read_checkpoint(tmp_path / name)
    assert not checkpoint.openai
    assert set(checkpoint.state) == set(original)
    assert all(torch.equal(checkpoint.state[key], original[key]) for key in original)


class Evil:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def _evil_archive(path: Path, mark: Path) -> None:
    openai_archive(path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    tree = next(name for name in records if name.endswith("/data.pkl"))
    records[tree] = pickle.dumps(Evil(mark), protocol=2)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data)


@pytest.mark.parametrize("form", ["pickle", "torch.save", "archive"])
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path, form: str) -> None:
    mark, path = tmp_path / "it-ran", tmp_path / "evil.pt"
    if form == "pickle":
        path.write_bytes(pickle.dumps(Evil(mark), protocol=2))
    elif form == "torch.save":
        torch.save({"state_dict": state(), "extra": Evil(mark)}, path)
    else:
        _evil_archive(path, mark)
    with pytest.raises(OtptError, match=r"evil\.pt"):
        read_checkpoint(path)
    assert not mark.exists()
    if form == "pickle":  # the trap is a real one
        pickle.loads(path.read_bytes())
        assert mark.exists()


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "archive.pt"])
def test_truncated_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "archive.pt":
        openai_archive(path)
    elif name == "a.pt":
        torch.save(state(), path)
    else:
        save_file(state(), path)
    data = path.read_bytes()
    for keep in (0.0, 0.001, 0.5, 0.999):
        path.write_bytes(data[: int(keep * len(data))])
        with pytest.raises(OtptError, match=r"Cannot read .* as a checkpoint"):
            read_checkpoint(path)


def test_files_without_weights(tmp_path: Path) -> None:
    for content in ([1, 2, 3], {"epoch": 3}, torch.zeros(3)):
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(OtptError, match="contains no weights"):
            read_checkpoint(tmp_path / "x.pt")
    with pytest.raises(OtptError, match=r"absent\.pt"):
        read_checkpoint(tmp_path / "absent.pt")
