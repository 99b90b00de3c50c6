"""Bytes, texts and plain data that are nearly right, or far from it."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

DECOY = "../../outside/"
"""The folder of decoys, seen from that of a case."""

SCRIPTS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'-alert(1)-'", "javascript:alert(1)",
    "</title><script>alert(1)</script>", "</style><script>alert(1)</script>", "<svg/onload=alert(1)>", "{{ 7 * 7 }}",
    "{% raw %}{{ config }}", "${7*7}", "<!--", "-->", "]]>", "&lt;script&gt;", "<a href='javascript:alert(1)'>x</a>",
    '" onmouseover="alert(1)', "<iframe srcdoc='<script>alert(1)</script>'>", "<base href=//example.invalid>",
    "<meta http-equiv=refresh content=0>", "\x00<script>", "<ScRiPt >alert(1)</sCrIpT>",
)  # fmt: skip
_LETTERS = (
    (0x20, 0x7E), (0x00, 0x1F), (0x7F, 0x9F), (0xA0, 0x24F), (0x300, 0x36F), (0x590, 0x6FF), (0x900, 0x97F),
    (0x200B, 0x200F), (0x2028, 0x202E), (0x2066, 0x2069), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xE000, 0xF8FF), (0xFE00, 0xFE0F), (0xFFF0, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x2FFFF), (0x30000, 0x3FFFF),
    (0xE0000, 0xEFFFF), (0xF0000, 0x10FFFF),
)  # fmt: skip
"""Ranges of code points: plain letters, controls, accents, right-to-left, isolates, and something of every plane."""
_PATHS = (
    "..", ".", "/", "../..", "/etc/passwd", DECOY + "secret.jpg", "C:\\x.jpg", "~", "~root/x", "a/../../b", "\x00",
    "con", "x" * 300, "a//b", "./", "nul\x00.jpg", "-rf", "|id", "$(id)", "`id`", "%2e%2e/x", "file:///etc/passwd",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30,
    -(10**30), 0.5, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip


def text(rng: random.Random, longest: int = 24) -> str:
    """A text out of any plane of Unicode, a script, a path, or plain words."""
    choice = rng.random()
    if choice < 0.35:
        return rng.choice(["cat", "dog", "red panda", "sea", "tree frog", "boat", "pug", "naïve café", "0", "12"])
    if choice < 0.5:
        return rng.choice(SCRIPTS)
    if choice < 0.6:
        return rng.choice(_PATHS)
    first, last = rng.choice(_LETTERS)
    length = rng.randrange(longest) if rng.random() < 0.98 else 10_000
    return "".join(chr(rng.randint(first, last)) for _ in range(length))


def storable(value: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot hold."""
    return value.encode("utf-8", "replace").decode("utf-8")


def damaged(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """Data with some bits flipped, cut, doubled, or numbers that lie; and what was done."""
    found = bytearray(data)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not found:
            break
        at = rng.randrange(len(found))
        step = rng.choice(("flip", "cut", "number", "double", "remove", "noise", "head"))
        done.append(step)
        if step == "flip":
            found[at] ^= 1 << rng.randrange(8)
        elif step == "cut":
            del found[at:]
        elif step == "number":
            form = rng.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
            bits = 8 * struct.calcsize(form)
            value = rng.choice((0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1, rng.getrandbits(bits)))
            found[at : at + bits // 8] = struct.pack(form, value)
        elif step == "double":
            end = min(len(found), at + rng.choice((1, 8, 64, 512)))
            found[at:at] = found[at:end]
        elif step == "remove":
            del found[at : at + rng.choice((1, 4, 64, 512))]
        elif step == "noise":
            found[at : at + 8] = rng.randbytes(8)
        else:  # a number near the beginning, where headers say how large things are
            at = rng.randrange(min(len(found), 64))
            found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(found), ", ".join(done) or "nothing"


def odd(rng: random.Random) -> Any:
    """A value that nobody expects."""
    makers: Sequence[Callable[[], Any]] = (
        lambda: None, lambda: True, lambda: rng.choice(NUMBERS), lambda: text(rng), list, dict, lambda: "",
        lambda: [odd(rng)], lambda: {text(rng): odd(rng)}, lambda: "9" * rng.choice((10, 400, 5000)),
        lambda: nested(rng), lambda: rng.choice(_PATHS),
        lambda: [rng.choice(NUMBERS) for _ in range(rng.choice((3, 1000)))],
    )  # fmt: skip
    return rng.choice(makers)()


def nested(rng: random.Random) -> Any:
    """A list in a list in a list."""
    value: Any = 1
    for _ in range(rng.choice((5, 50, 150))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def deep_json(rng: random.Random) -> str:
    """JSON that is nested more deeply than a reader may go."""
    depth = rng.choice((500, 1_500, 20_000, 200_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    return opening * depth + ("1" + closing * depth if rng.random() < 0.7 else "")


def mutated(rng: random.Random, value: Any, changes: int | None = None) -> Any:
    """Plain data with one or a few of its parts replaced, deleted, added or renamed."""
    copy = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 5)) if changes is None else changes):
        holders = list(_holders(copy))
        if not holders:
            return odd(rng)
        holder = rng.choice(holders)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        step = rng.choice(("replace", "replace", "replace", "delete", "add", "rename"))
        key = rng.choice(keys) if keys else None
        if key is None or step == "add":
            if isinstance(holder, dict):
                holder[text(rng)] = odd(rng)
            else:
                holder.append(odd(rng))
        elif step == "replace":
            holder[key] = odd(rng)
        elif step == "delete":
            del holder[key]
        elif isinstance(holder, dict):
            holder[text(rng)] = holder.pop(key)
        else:
            holder.insert(0, holder[key])
    return copy


def _holders(value: Any) -> Any:
    """All dictionaries and lists of plain data that may be changed."""
    if isinstance(value, (dict, list)):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from _holders(each)


def as_json(rng: random.Random, value: Any) -> bytes:
    """JSON of plain data, whole or damaged; now and then something else in its place."""
    choice = rng.random()
    if choice < 0.04:
        return deep_json(rng).encode()
    data = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if choice < 0.2:
        return damaged(rng, data)[0]
    if choice < 0.24:
        return rng.choice((b"", b"null", b"[]", b"{}", b"\xff\xfe{}", b"\xef\xbb\xbf" + data, b"NaN", b'"x"', data * 2))
    return data
