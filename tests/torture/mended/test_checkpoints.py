"""Faults that the campaign found in checkpoints, each with the smallest file that showed it."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from otpt.backbones.checkpoints import read_checkpoint
from otpt.backbones.sources.architectures import infer_config
from otpt.errors import OtptError
from otpt.prompts.learned import read_learned
from torture.inputs import pickles

pytestmark = pytest.mark.slow


def archive(tree: bytes, records: dict[str, bytes] | None = None, *, pressed: bool = False) -> bytes:
    """A TorchScript archive with this pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if pressed else zipfile.ZIP_STORED) as file:
        file.writestr("a/data.pkl", tree)
        file.writestr("a/constants.pkl", b"\x80\x02).")
        for key, data in (records or {}).items():
            file.writestr(f"a/data/{key}", data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "tree",
    [
        b"\x80\x04]r" + struct.pack("<I", 2**31 - 1) + b".",  # a place in the memo that takes gigabytes
        b"\x80\x04\x95" + struct.pack("<Q", 2**64 - 1) + b"].",  # a frame longer than any file
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",  # a bytearray of a terabyte
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
    ],
)
def test_a_pickle_that_asks_for_gigabytes_is_refused(tree: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(archive(tree))
    with pytest.raises(OtptError):
        read_checkpoint(path)


def test_modules_that_hold_each_other_do_not_make_an_endless_tree(tmp_path: Path) -> None:
    """Forty modules, each with the next one twice: 2⁴⁰ paths."""
    node = pickles.module({})
    tree = node + b"q\x00"
    for level in range(40):
        state = b"}(" + b"X\x01\x00\x00\x00a" + b"h" + bytes([level]) + b"X\x01\x00\x00\x00b" + b"h" + bytes([level])
        tree += b"c__torch__.m\nM\n)\x81" + state + b"ub" + b"q" + bytes([level + 1])
    path = tmp_path / "a.pt"
    path.write_bytes(archive(b"\x80\x02" + tree + b"."))
    with pytest.raises(OtptError):
        read_checkpoint(path)


def test_a_zip_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(archive(b"\x80\x02}.", {"0": bytes(200 << 20)}, pressed=True))
    for read in (read_checkpoint, read_learned):
        with pytest.raises(OtptError, match="would unpack to"):
            read(path)


def test_a_few_bytes_are_not_taken_for_terabytes(tmp_path: Path) -> None:
    """A stride of 0 repeats one value; the check for finite values would write all of them out."""
    path = tmp_path / "a.pt"
    torch.save({"ctx": torch.zeros(1).as_strided((10**6, 10**6), (0, 0))}, path)
    for read in (read_checkpoint, read_learned):
        with pytest.raises(OtptError, match="no more than the file holds"):
            read(path)


def test_tensors_without_plain_values_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for tensor in (torch.ones(2, 2).to_sparse(), torch.ones(2, 2, device="meta")):
        torch.save({"ctx": tensor}, path)
        for read in (read_checkpoint, read_learned):
            with pytest.raises(OtptError):
                read(path)


def test_weights_of_other_shapes_are_told(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="architecture="):
        infer_config({"visual.proj": torch.ones(2, 2), "visual.conv1.weight": torch.ones(2, 2)}, "a.pt")


def test_digits_that_are_no_numbers(tmp_path: Path) -> None:
    """'²'.isdigit() holds, and int('²') fails."""
    path = tmp_path / "a.pt"
    torch.save({"ctx": torch.ones(2, 2), "compound_prompts_text.²": torch.ones(2, 2)}, path)
    with pytest.raises(OtptError):
        read_learned(path)
