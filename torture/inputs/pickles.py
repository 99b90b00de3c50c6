"""Pickles that do more than hold data: written opcode by opcode, since ``pickle.dumps`` would be too honest."""

from __future__ import annotations

import io
import pickle
import random
import struct
import zipfile
from typing import Any

CALLS = (
    ("os", "system"), ("posix", "system"), ("builtins", "exec"), ("builtins", "eval"), ("builtins", "__import__"),
    ("subprocess", "check_output"), ("builtins", "open"), ("os", "remove"), ("torch.serialization", "load"),
    ("torch", "load"), ("builtins", "getattr"), ("torch.hub", "load"), ("__torch__.x", "system"),
    ("torch._utils", "_rebuild_tensor_v2"), ("torch.storage", "_load_from_bytes"), ("runpy", "_run_code"),
    ("collections", "OrderedDict.fromkeys"), ("numpy.core.multiarray", "scalar"), ("pickle", "loads"),
    ("torch.jit._pickle", "build_intlist"), ("torch.jit", "load"), ("functools", "partial"), ("torch", "Tensor"),
    ("torch._utils", "_rebuild_parameter"), ("torch.nn.parameter", "Parameter"),
)  # fmt: skip
"""What a file may ask for when it is read; none of it may happen."""


def call(rng: random.Random) -> bytes:
    """Opcodes that call a function with a text that would do harm."""
    module, name = rng.choice(CALLS)
    argument = rng.choice(("touch ../../outside/owned", "../../outside/secret.txt", "import os", "1"))
    end = rng.choice((b"R", b"R", b"\x81"))  # REDUCE, or NEWOBJ
    return b"c" + f"{module}\n{name}\n".encode() + _text(argument) + b"\x85" + end


def bomb(rng: random.Random) -> tuple[bytes, str]:
    """A small pickle that takes much memory or time to read; and its name."""
    kind = rng.choice(("memo", "bytes", "doubling", "depth", "long", "bytearray", "frame", "modules"))
    if kind == "memo":  # a place in the memo table that makes it grow to gigabytes
        return b"\x80\x04]r" + struct.pack("<I", rng.choice((2**20, 2**28, 2**31 - 1))) + b".", kind
    if kind == "bytes":
        return b"\x80\x04\x8e" + struct.pack("<Q", rng.choice((2**33, 2**62, 2**64 - 1))) + b"x.", kind
    if kind == "bytearray":
        return b"\x80\x05\x96" + struct.pack("<Q", rng.choice((2**33, 2**40, 2**62))) + b"x.", kind
    if kind == "frame":
        return b"\x80\x04\x95" + struct.pack("<Q", rng.choice((2**33, 2**62, 2**64 - 1))) + b"].", kind
    if kind == "long":
        return b"\x80\x02\x8b" + struct.pack("<i", rng.choice((2**31 - 1, -1, 10**6))) + b"\xff" * 1000 + b".", kind
    if kind == "doubling":  # lists of lists, each twice the one before
        parts = [
            b"]q" + bytes([i + 1]) + b"(" + (b"h" + bytes([i])) * 2 + b"e" for i in range(rng.choice((10, 40, 80)))
        ]
        return b"\x80\x04]q\x00" + b"".join(parts) + b".", kind
    if kind == "modules":  # the same with modules of a TorchScript archive
        levels = rng.choice((10, 40, 80))
        chain = [_module(b"}"), b"q\x00"]
        for i in range(levels):
            state = b"}(" + _text("a") + b"h" + bytes([i]) + _text("b") + b"h" + bytes([i]) + b"u"
            chain += [_module(state), b"q" + bytes([i + 1])]
        return b"\x80\x02" + b"".join(chain) + b".", kind
    depth = rng.choice((1_000, 50_000))
    return b"\x80\x02" + b"](" * depth + b"e" * depth + b".", kind


def torch_zip(rng: random.Random, tree: bytes, records: dict[str, bytes], *, script: bool) -> bytes:
    """A zip file as ``torch.save`` or ``torch.jit.save`` writes it, or nearly so."""
    buffer = io.BytesIO()
    prefix = rng.choice(("archive", "archive", "archive", "..", "/abs", "a/b", ""))
    pressed = zipfile.ZIP_DEFLATED if rng.random() < 0.2 else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", pressed) as archive:
        archive.writestr(f"{prefix}/data.pkl", tree)
        if script:
            archive.writestr(f"{prefix}/constants.pkl", b"\x80\x02).")
            archive.writestr(f"{prefix}/code/__torch__.py", "import os\nos.system('touch ../../outside/owned')\n")
        archive.writestr(f"{prefix}/byteorder", rng.choice((b"little", b"little", b"little", b"big", b"")))
        archive.writestr(f"{prefix}/version", rng.choice((b"3\n", b"3\n", b"999999999999\n", b"x")))
        for key, data in records.items():
            archive.writestr(f"{prefix}/data/{key}", data)
    return buffer.getvalue()


def tensor(rng: random.Random, key: str, *, name: str = "_rebuild_tensor_v2", lies: bool = True) -> bytes:
    """Opcodes of a tensor on the record ``key``; with ``lies`` its size, strides and offset may be anything."""
    honest = not lies or rng.random() < 0.6
    size = (2, 2) if honest else tuple(rng.choice((0, 1, 2, 10**6, 10**12, -1)) for _ in range(rng.randrange(4)))
    stride = (2, 1) if honest else tuple(rng.choice((0, 1, 2, 10**9, -1)) for _ in range(rng.randrange(4)))
    offset = 0 if honest else rng.choice((0, 1, 2**40, -1))
    storage = rng.choice(("FloatStorage",) * 6 + ("HalfStorage", "BoolStorage", "QInt8Storage", "UntypedStorage"))
    count = rng.choice((4, 4, 4, 2**40, -1))
    record = (
        b"("
        + _text("storage")
        + b"ctorch\n"
        + storage.encode()
        + b"\n"
        + _text(key)
        + _text("cpu")
        + _int(count)
        + b"tQ"
    )
    function = b"ctorch._utils\n" + name.encode() + b"\n"
    return (
        function + b"(" + record + _int(offset) + _tuple(size) + _tuple(stride) + b"\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


def plain(value: Any) -> bytes:
    """Opcodes of plain data, without the frame of a whole pickle."""
    return pickle.dumps(value, 2)[2:-1]


def dictionary(items: dict[str, bytes]) -> bytes:
    """Opcodes of a dictionary whose values are opcodes."""
    return b"}(" + b"".join(_text(key) + value for key, value in items.items()) + b"u"


def module(items: dict[str, bytes]) -> bytes:
    """Opcodes of a module of a TorchScript archive."""
    return _module(dictionary(items))


def _module(state: bytes) -> bytes:
    return b"c__torch__.m\nM\n)\x81" + state + b"b"


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    return b"X" + struct.pack("<I", len(data)) + data


def _int(value: int) -> bytes:
    return b"I%d\n" % value


def _tuple(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_int, values)) + b"t"
