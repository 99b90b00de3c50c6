"""webdataset shards: tars with links, devices, paths that lead out, sparse files, and sizes that lie."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

from otpt.data import load_dataset
from otpt.images import open_image
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import damaged, deep_json, storable, text
from torture.inputs.tables import use

_TYPES = (
    tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE,
    tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, tarfile.XHDTYPE,
    tarfile.GNUTYPE_LONGNAME, b"Z",
)  # fmt: skip
_HEADERS = (
    "GNU.sparse.major", "GNU.sparse.realsize", "GNU.sparse.size", "GNU.sparse.map", "GNU.sparse.name", "path", "size",
    "GNU.sparse.numblocks", "hdrcharset", "mtime",
)  # fmt: skip
_BRACES = (
    "{0..0}", "{0..99999999999999999}", "{0..999}{0..999}{0..999}", "{5..1}", "{" * 3000, "{a,b}", "{0,0}", "{}",
    "{٠..٩}", "{0..9}" * 30,
)  # fmt: skip
_NAMES = ("../../outside/victim", "/etc/x", "a/../../b", "a", "b", "c", "d/e", ".hidden", "", "..", "a.b", "A")
_ENDS = (".jpg", ".png", ".cls", ".txt", ".json", ".JPG", ".jpg.jpg", "", ".")
_LABELS = (
    b"cat",
    b"0",
    b"",
    b"\xff",
    b'{"label": "cat"}',
    b'{"cls": null}',
    b"[]",
    b"9" * 5000,
    b"{}",
    b'{"label": 1e999}',
)


def _tar(rng: random.Random) -> tuple[bytes, str]:
    buffer = io.BytesIO()
    form = rng.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    kinds = set()
    with tarfile.open(fileobj=buffer, mode=rng.choice(("w", "w", "w", "w", "w:gz")), format=form) as archive:
        for number in range(rng.randrange(1, 8)):
            stem = rng.choice(_NAMES) if rng.random() < 0.6 else storable(text(rng, 12))[:80]
            plain = rng.random() < 0.5
            for end in (".jpg", ".cls") if plain else (rng.choice(_ENDS),):
                member = tarfile.TarInfo((f"k{number}" if plain else stem) + end)
                member.type = rng.choice(_TYPES) if rng.random() < 0.35 else tarfile.REGTYPE
                kinds.add(member.type)
                member.linkname = rng.choice(("../../outside/secret.jpg", "/etc/passwd", "a.jpg", ""))
                content = rng.choice(_LABELS) if end != ".json" or rng.random() < 0.9 else deep_json(rng).encode()
                member.size = len(content)
                if form == tarfile.PAX_FORMAT and rng.random() < 0.2:
                    key = rng.choice(_HEADERS)
                    member.pax_headers = {
                        key: rng.choice(("1", "0", "-1", "9" * 30, "x", "0,1,2", "BINARY", "../../x"))
                    }
                try:
                    archive.addfile(member, io.BytesIO(content))
                except (ValueError, UnicodeError):
                    continue
    data = buffer.getvalue()
    done = ""
    if rng.random() < 0.4:
        data, done = damaged(rng, data)
    return data, f"{len(kinds)} types {done}"


def _shards(rng: random.Random, given: Path) -> Input:
    data, detail = _tar(rng)
    name = rng.choice(("s-0.tar", "s-0.tar", "s-0.tar", "s.tar.gz"))
    (given / name).write_bytes(data)
    spec = f"{given}/{name}"
    if rng.random() < 0.15:
        inside = rng.choice(_BRACES)
        spec = f"{given}/s-{inside}.tar"

    def ask() -> object:
        found = load_dataset(spec)
        return use(found), open_image(found.source(0))

    return Input(detail, ask)


KINDS = [Kind("tars", _shards)]
