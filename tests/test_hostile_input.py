"""Files by somebody who means harm: one sentence, no code of the file is run, no file elsewhere is read.

Each case is a fault that fuzzing found once. ``tests/faults`` looks for new ones.
"""

from __future__ import annotations

import io
import json
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from oracles.models.tiny import open_clip_local_dir
from PIL import Image

import otpt
from otpt.data import Dataset, load_dataset
from otpt.errors import OtptError
from otpt.images import open_image

DEEP = "[" * 200_000


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\u202egnp", "\ud800", "\u2028", "x" * 10**6])
def test_a_message_is_one_short_line_that_a_terminal_can_show(name: str) -> None:
    message = str(OtptError(f"There is no {name}; check the path."))
    assert message.isprintable()
    assert len(message) < 2100
    assert message.endswith("; check the path.")


def test_postscript_is_not_given_to_ghostscript(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow starts gs for an EPS file, which runs the file's program."""
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, "EPS")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    for source in (buffer.getvalue(), Image.open(buffer)):
        with pytest.raises(OtptError, match="EPS"):
            open_image(source)


def tar(path: Path, **members: bytes) -> str:
    with tarfile.open(path, mode="w") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name.replace("_", "."))
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return str(path)


def table_of_one_row(folder: Path) -> str:
    table = pa.table({"path": pa.repeat("a.jpg", 200_000), "label": pa.repeat("cat", 200_000)})
    pq.write_table(table, folder / "a.parquet", compression="zstd")
    return str(folder / "a.parquet")


def label_of_many_digits(folder: Path) -> str:
    (folder / "classes.txt").write_text("cat\ndog\n", encoding="utf-8")
    (folder / "a.csv").write_text(f"path,label\na.jpg,{'9' * 5000}\n", encoding="utf-8")
    return str(folder / "a.csv")


def links_in_a_circle(folder: Path) -> str:
    (folder / "cat").mkdir()
    (folder / "cat" / "again").symlink_to(folder / "cat")
    (folder / "cat" / "file").symlink_to("file")
    return str(folder)


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: "x" * 5000,
        lambda folder: "~nobody-of-that-name/x",
        lambda folder: "a\0.csv",
        lambda folder: "{0..99999999999}.tar",
        lambda folder: "{0..99999}-{0..99999}.tar",
        lambda folder: "{0..9}" * 30 + ".tar",
        lambda folder: tar(folder / "a.tar", a_jpg=b"x", a_cls=bytes(2 << 20)),
        lambda folder: tar(folder / "a.tar", a_jpg=b"x", a_json=DEEP.encode()),
        table_of_one_row,
        label_of_many_digits,
        links_in_a_circle,
    ],
)
def test_data_sets(make: Callable[[Path], str], tmp_path: Path) -> None:
    with pytest.raises(OtptError):
        load_dataset(make(tmp_path))


@pytest.mark.parametrize(
    "rows", ['[["a.jpg", 1e999, "banded"]]', '[["\\ud800.jpg", 0, "banded"]]', DEEP, '[["../x.jpg", 0, "banded"]]']
)
def test_split_files(rows: str, tmp_path: Path) -> None:
    (tmp_path / "dtd" / "images").mkdir(parents=True)
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(f'{{"test": {rows}}}', encoding="utf-8")
    with pytest.raises(OtptError):
        load_dataset("dtd", root=tmp_path)


def test_ids_that_are_not_text() -> None:
    with pytest.raises(OtptError):
        Dataset("x", ["a", "b"], ["\ud800"], [0], lambda index: b"")


@pytest.mark.parametrize("name", ["mine.so", "mine.pyc", "a\0b.py"])
def test_plugins(name: str, tmp_path: Path) -> None:
    if "\0" not in name:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(OtptError):
        otpt.load_plugin(f"{tmp_path}/{name}")


def test_method_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f"a = {DEEP}", encoding="utf-8")
    with pytest.raises(OtptError):
        otpt.load_methods(tmp_path / "a.toml")
    with pytest.raises(OtptError):
        otpt.get_method("a\0b.toml")


def archive(tree: bytes, records: dict[str, bytes] | None = None, *, compressed: bool = False) -> bytes:
    """A TorchScript archive with this pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as file:
        file.writestr("a/data.pkl", tree)
        file.writestr("a/constants.pkl", b"\x80\x02).")
        for key, data in (records or {}).items():
            file.writestr(f"a/data/{key}", data)
    return buffer.getvalue()


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


class RunsCode:
    def __reduce__(self) -> Any:
        return open, ("ran", "w")


@pytest.mark.parametrize(
    "content",
    [
        archive(b"\x80\x04]r" + struct.pack("<I", 2**31 - 1) + b"."),  # an index of the memo that takes gigabytes
        archive(b"\x80\x04\x95" + struct.pack("<Q", 2**64 - 1) + b"]."),  # a frame longer than any file
        archive(b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x."),  # a bytearray of a terabyte
        archive(b"\x80\x02}.", {"0": bytes(200 << 20)}, compressed=True),  # unpacks to far more than it is
        saved({"visual.proj": torch.zeros(1).as_strided((10**6, 10**6), (0, 0))}),  # a few bytes shown as terabytes
        saved({"visual.proj": torch.ones(2, 2).to_sparse()}),
        saved({"visual.proj": RunsCode()}),
        saved({"visual.proj": torch.ones(2, 2), "visual.conv1.weight": torch.ones(2, 2)}),
    ],
    ids=["memo", "frame", "bytearray", "bomb", "strides", "sparse", "code", "shapes"],
)
def test_checkpoints(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(OtptError):
        otpt.load_backbone(tmp_path / "a.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    open_clip_local_dir(folder)
    return folder


def changed(model: Path, folder: Path, part: str, change: dict[str, Any]) -> Path:
    """A copy of the model with a change of one part of its configuration."""
    config = json.loads((model / "open_clip_config.json").read_text(encoding="utf-8"))
    (config["model_cfg"] if part == "model_cfg" else config["model_cfg"][part]).update(change)
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "open_clip_model.safetensors").symlink_to(model / "open_clip_model.safetensors")
    return folder


def test_the_tokenizer_runs_no_code_of_the_folder(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    change = {"hf_tokenizer_name": "bert-base-uncased", "tokenizer_kwargs": {"trust_remote_code": True}}
    folder = changed(model, tmp_path / "model", "text_cfg", change)
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(own), encoding="utf-8")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n", encoding="utf-8")
    with pytest.raises(OtptError):
        otpt.load_backbone(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("text_cfg", {"hf_model_name": "../elsewhere"}),
        ("text_cfg", {"hf_tokenizer_name": "/etc"}),
        ("vision_cfg", {"timm_model_name": "local-dir:../elsewhere"}),
        ("text_cfg", {"tokenizer_kwargs": {"bpe_path": "/etc/passwd"}}),
        ("text_cfg", {"context_length": -1}),
        ("text_cfg", {"width": 2**15}),
        ("vision_cfg", {"image_size": "$(id)"}),
        ("model_cfg", {"embed_dim": True}),
    ],
)
def test_model_folders(part: str, change: dict[str, Any], model: Path, tmp_path: Path) -> None:
    with pytest.raises(OtptError):
        otpt.load_backbone(changed(model, tmp_path / "model", part, change))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", 7])
def test_an_index_of_weights_names_files_of_its_own_folder(name: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "clip"}), encoding="utf-8")
    index = {"weight_map": {"x": name}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(OtptError):
        otpt.load_backbone(tmp_path / "model")
