"""webdataset shards, ``data-{000..009}.tar``: indexed once, then each image is read by its offset.

A sample is the members of one name up to the first dot: ``0001.jpg`` and ``0001.cls`` (a number), ``0001.txt``
(a class name) or ``0001.json`` (``{"label": …}``).
"""

from __future__ import annotations

import os
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from otpt.data.classes import ClassList, find_class_list
from otpt.data.dataset import IMAGE_SUFFIXES, Dataset
from otpt.data.own.labels import origin_of, own_dataset, resolve_labels
from otpt.data.records import shortened
from otpt.errors import OtptError, cannot_read
from otpt.files import parse_json

_LABEL_SUFFIXES = (".cls", ".txt", ".json")
_MOST_SHARDS = 100_000
_LONGEST_LABEL = 1 << 20  # bytes
_JSON_KEYS = ("label", "cls", "class", "class_name")


@dataclass(frozen=True)
class MembersOf:
    """Image ``i`` as bytes: ``size`` of them from ``offset`` on in one of the shards."""

    shards: tuple[Path, ...]
    where: tuple[tuple[int, int, int], ...]  # shard, offset, size

    def __call__(self, index: int) -> bytes:
        shard, offset, size = self.where[index]
        try:
            with self.shards[shard].open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise cannot_read("shard", self.shards[shard], error) from None


@dataclass
class _Sample:
    image: tuple[int, int, int] | None = None
    labels: dict[str, str] = field(default_factory=dict)


def shard_dataset(spec: str, root: Path | None = None, classes: ClassList | None = None) -> Dataset:
    """The data set of the shards that ``spec`` names, with ``{000..009}`` and ``{a,b}`` expanded."""
    shards = [Path(os.path.expanduser(name)) for name in expand_braces(spec)]
    if root is not None and not os.path.exists(shards[0]):
        shards = [Path(os.path.expanduser(root)) / shard for shard in shards]
    missing = [str(shard) for shard in shards if not os.path.isfile(shard)]
    if missing:
        raise OtptError(f"Of the {len(shards)} shards of {spec!r} these do not exist: {shortened(missing)}.")
    ids: list[str] = []
    labels: list[str] = []
    where: list[tuple[int, int, int]] = []
    for number, shard in enumerate(shards):
        for key, sample in _index(number, shard).items():
            if sample.image is None:
                continue
            if not sample.labels:
                raise OtptError(
                    f"In the shard {str(shard)!r}, {key!r} has no label; expected {key}.cls, .txt or .json."
                )
            ids.append(f"{shard.name}/{key}")
            where.append(sample.image)
            labels.append(next(sample.labels[suffix] for suffix in _LABEL_SUFFIXES if suffix in sample.labels))
    if not ids:
        raise OtptError(f"The shards {spec!r} hold no images.")
    listed = classes if classes is not None else find_class_list(shards[0].parent)
    listed, resolved = resolve_labels(labels, listed, f"The shards {spec!r}")
    name = re.sub(r"[-_.]*(\{[^}]*\})[-_.]*", "", Path(spec).name).removesuffix("tar").rstrip(".") or "shards"
    return own_dataset(
        name,
        listed,
        ids,
        resolved,
        MembersOf(tuple(shards), tuple(where)),
        origin=origin_of(shards[0].parent / Path(spec).name),
    )


def expand_braces(spec: str) -> list[str]:
    """``x-{08..11}.tar`` → x-08.tar … x-11.tar; ``{a,b}`` → a and b.

    >>> expand_braces("x-{8..10}.tar")
    ['x-8.tar', 'x-9.tar', 'x-10.tar']
    """
    found: list[str] = []
    waiting = [spec]  # a stack
    while waiting:
        one = waiting.pop()
        match = re.search(r"\{([^{}]*)\}", one)
        if match is None:
            found.append(one)
            continue
        parts = _alternatives(match[1], spec)
        if len(found) + len(waiting) + len(parts) > _MOST_SHARDS:
            raise _too_many(spec)
        waiting += [one[: match.start()] + part + one[match.end() :] for part in reversed(parts)]
    return found


def _alternatives(inside: str, spec: str) -> list[str]:
    """What a pair of braces may be replaced by."""
    numbers = re.fullmatch(r"([0-9]{1,18})\.\.([0-9]{1,18})", inside)
    if numbers is None:
        return inside.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    if last < first:
        raise OtptError(f"The shards {spec!r} run from {first} down to {last}; expected {{first..last}}.")
    if last - first >= _MOST_SHARDS:
        raise _too_many(spec)
    width = len(numbers[1]) if numbers[1].startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def _too_many(spec: str) -> OtptError:
    return OtptError(f"The shards {spec!r} are more than {_MOST_SHARDS:,}; expected fewer: check the range in braces.")


def _index(number: int, shard: Path) -> dict[str, _Sample]:
    """Key → the position of its image and its labels, in the order of the shard."""
    samples: dict[str, _Sample] = {}
    try:
        # "r:" refuses compression: inside a compressed shard no image can be read by its offset.
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                if member.issparse():  # its size is not that of its bytes
                    raise OtptError(
                        f"In the shard {str(shard)!r}, {member.name!r} is a sparse file; expected plain ones: write "
                        "the shard without --sparse."
                    )
                folder, slash, name = member.name.rpartition("/")
                stem, _, suffix = name.partition(".")
                if not stem:
                    continue
                key, ending = folder + slash + stem, f".{suffix.lower()}"
                sample = samples.setdefault(key, _Sample())
                if ending in IMAGE_SUFFIXES:
                    if sample.image is not None:
                        raise OtptError(f"In the shard {str(shard)!r}, {key!r} has two images; expected one.")
                    sample.image = (number, member.offset_data, member.size)
                elif ending in _LABEL_SUFFIXES:
                    if member.size > _LONGEST_LABEL:
                        raise OtptError(
                            f"In the shard {str(shard)!r}, the label {member.name!r} has {member.size:,} bytes; "
                            f"expected a name or number, at most {_LONGEST_LABEL:,}."
                        )
                    content = archive.extractfile(member)
                    assert content is not None  # it is a regular file
                    sample.labels[ending] = _label(content.read(), ending, f"{shard}: {member.name}")
    except OtptError:
        raise
    except OSError as error:
        raise cannot_read("shard", shard, error) from None
    except Exception as error:  # beside its own errors tarfile lets others through for damaged headers
        raise OtptError(
            f"The shard {str(shard)!r} is not a whole, uncompressed tar file ({error}); unpack .gz shards first."
        ) from None
    return samples


def _label(content: bytes, ending: str, where: str) -> str:
    try:
        text = content.decode("utf-8").strip()
        if ending == ".json":
            values = parse_json(text)
            text = str(next(values[key] for key in _JSON_KEYS if key in values)).strip()
    except (ValueError, TypeError, StopIteration):
        raise OtptError(f"{where} holds no label; expected text, or JSON with 'label'.") from None
    if not text:
        raise OtptError(f"{where} is empty; expected a label.")
    return text


def is_shards(spec: str) -> bool:
    """Whether a spec names tar files."""
    return spec.lower().endswith((".tar", ".tar.gz", ".tgz"))
