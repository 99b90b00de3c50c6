"""Unpacking of downloaded archives: only plain files, only below their folder, each written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from otpt.errors import OtptError

_CHUNK = 1 << 20
_DAMAGE = (EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
WHOLE = "."
"""Folder in ``place`` that stands for the whole archive."""


@dataclass(frozen=True)
class Member:
    """Plain file in an archive.

    Attributes:
        name: its path in the archive.
        size: bytes.
        open: function that returns its content as a stream.
    """

    name: str
    size: int
    open: Callable[[], IO[bytes]]


@dataclass
class Unpacked:
    """What was unpacked: numbers of files, of files that were there before, and of links that were left out."""

    files: int = 0
    before: int = 0
    links: int = 0


def is_archive(path: Path) -> bool:
    """Return whether a file is a tar or zip archive."""
    try:
        return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)
    except (OSError, *_DAMAGE):
        return False


def members(path: Path, counts: Unpacked | None = None, *, inner: str = "") -> Iterator[Member]:
    """Yield the plain files of a tar or zip archive, in its order.

    Args:
        path: the archive.
        counts: counts links, which are left out.
        inner: name of an archive inside it whose files are meant.

    Raises:
        OtptError: if it is no archive, is damaged, or has a name outside the folder it is unpacked into.
    """
    counts = Unpacked() if counts is None else counts
    if zipfile.is_zipfile(path):
        listed = _zip_members(path, counts)
    elif tarfile.is_tarfile(path):
        listed = _tar_members(tarfile.open(path), counts)  # noqa: SIM115
    else:
        raise OtptError(f"{str(path)!r} is {_kind_of(path)}, not a tar or zip archive; {_AGAIN}.")
    yield from _inner_members(listed, inner, counts, path) if inner else listed


_AGAIN = "delete it and get it again"


@contextmanager
def archive_errors(path: Path) -> Iterator[None]:
    """Turn the errors of reading a damaged archive and of a full disk into one sentence each."""
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(path, error) from None
    except OSError as error:
        if error.errno is None:  # gzip's own errors have no number
            raise _damaged(path, error) from None
        raise cannot_write(path.name, error) from None


def _damaged(path: Path, error: Exception) -> OtptError:
    reason = " ".join(str(error).split()).rstrip(".") or "it ends too early"
    return OtptError(f"The archive {str(path)!r} is damaged or cut off ({reason}); {_AGAIN}.")


def cannot_write(what: str, error: OSError) -> OtptError:
    """Return an error for a disk that is full or cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    action, remedy = ("write", "free space on the disk") if full else ("use", "check the folder and its permissions")
    return OtptError(
        f"Cannot {action} {error.filename or what!r}: {error.strerror or error}; {remedy} and repeat the command, "
        "which continues where it stopped."
    )


def _kind_of(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(512).lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page"
    return "a RAR archive" if head.startswith(b"rar!") else "another kind of file"


def _zip_members(path: Path, counts: Unpacked) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if (info.external_attr >> 16) & 0o170000 == 0o120000:  # a symbolic link
                counts.links += 1
                continue
            yield Member(info.filename, info.file_size, partial(archive.open, info))


def _tar_members(archive: tarfile.TarFile, counts: Unpacked) -> Iterator[Member]:
    with archive:
        for info in archive:
            if info.isdir():
                continue
            if not info.isreg():
                counts.links += 1
                continue
            yield Member(info.name, info.size, partial(_content, archive, info))


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(info)
    if stream is None:
        raise tarfile.ReadError(f"{info.name} has no content")
    return stream


def _inner_members(listed: Iterator[Member], inner: str, counts: Unpacked, path: Path) -> Iterator[Member]:
    """Yield the files of a tar archive inside an archive."""
    for member in listed:
        if PurePosixPath(member.name).name == inner and not _is_junk(member.name):
            with member.open() as stream:
                yield from _tar_members(tarfile.open(fileobj=stream, mode="r|*"), counts)  # noqa: SIM115
            return
    raise OtptError(f"{str(path)!r} has no {inner!r} inside, so it is another archive; {_AGAIN}.")


def unpack(path: Path, place: Mapping[str, str], root: Path, *, inner: str = "") -> Unpacked:
    """Unpack folders of an archive.

    A file of the same size that is already there stays. Each file gets its name when it is complete, so that a killed
    process leaves no half image. Links and files outside these folders are left out.

    Args:
        path: tar or zip archive.
        place: folder inside the archive → folder below ``root``.
        root: the data root.
        inner: archive inside the archive that holds the folders.

    Raises:
        OtptError: if it is no such archive, is damaged, or would write outside its folder.
    """
    counts = Unpacked()
    with archive_errors(path):
        for member in members(path, counts, inner=inner):
            check_name(member.name, path)
            target = None if _is_junk(member.name) else _target(member.name, place)
            if target is None:
                continue
            counts.files += 1
            if not write_member(member, root / target):
                counts.before += 1
    if not counts.files:
        folders = ", ".join(place)
        raise OtptError(f"{str(path)!r} has no files in {folders}, so it is another archive; {_AGAIN}.")
    return counts


def write_member(member: Member, target: Path) -> bool:
    """Write a file of an archive; return False if one of the same size was already there."""
    with suppress(FileNotFoundError):
        if target.stat().st_size == member.size:
            return False
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with member.open() as source, temporary.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
        if temporary.stat().st_size != member.size:
            raise EOFError(f"{member.name} is cut off")
        os.replace(temporary, target)
    except OSError as error:
        error.filename = error.filename or str(target)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    return True


def check_name(name: str, archive: Path) -> None:
    """Raise for a path outside the folder of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0] or "\0" in name:
        raise OtptError(
            f"The archive {str(archive)!r} has the file {name!r}, which lies outside its folder; nothing more of it is "
            "unpacked, and no official archive has such names: delete it."
        )


def _is_junk(name: str) -> bool:
    """Return whether a file is metadata of macOS."""
    parts = PurePosixPath(name).parts
    return "__MACOSX" in parts or parts[-1].startswith("._") or parts[-1] == ".DS_Store"


def _target(name: str, place: Mapping[str, str]) -> PurePosixPath | None:
    """Return where a file belongs, below the first folder of its path that ``place`` names, or None."""
    parts = PurePosixPath(name).parts
    for at, folder in enumerate(parts[:-1]):
        if folder in place:
            rest = parts[at + 1 :]
            while len(rest) > 1 and rest[0] == folder:  # a folder that was packed twice
                rest = rest[1:]
            return PurePosixPath(place[folder], *rest)
    return PurePosixPath(place[WHOLE], *parts) if WHOLE in place else None
