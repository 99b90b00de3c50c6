"""Files that are either whole or not there: written under another name, flushed to the disk, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import tomllib
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from otpt.errors import OtptError, cannot_read

_ABANDONED_AFTER = 3600.0  # seconds; no writing takes so long
_ATTEMPTS = 3
_numbers = count()


def write_atomically(path: Path, data: bytes, *, exclusive: bool = False, durable: bool = True) -> bool:
    """Write ``data`` so that ``path`` never holds a part of it; False if ``exclusive`` and it is there already.

    Two writers of the same path do not disturb each other: each has a name of its own until the renaming. Without
    ``durable`` a power failure may leave the file empty or torn; for files with a checksum that can be recomputed.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _write(path, data, exclusive=exclusive, durable=durable)
        except OSError as error:
            # Where clocks differ or jump, another process may take our unfinished file for an abandoned one.
            if isinstance(error, FileNotFoundError) and attempt < _ATTEMPTS - 1:
                continue
            raise OtptError(
                f"Cannot write {str(path)!r}: {error.strerror or error}; make room or choose another folder, then give "
                "the same command again: what is finished is kept."
            ) from None
    raise AssertionError("the last attempt returns or raises")


def _write(path: Path, data: bytes, *, exclusive: bool, durable: bool) -> bool:
    temporary = path.with_name(f".{path.name}.{process_space()}.{os.getpid()}.{next(_numbers)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        return _put(temporary, path, exclusive)
    finally:
        with suppress(OSError):  # what cannot be deleted now is deleted later, as a leftover
            temporary.unlink(missing_ok=True)


def _put(temporary: Path, path: Path, exclusive: bool) -> bool:
    if not exclusive:
        os.replace(temporary, path)
        return True
    try:
        os.link(temporary, path)  # unlike a renaming, it fails when another process was first
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        os.replace(temporary, path)
    return True


class Disk:
    """What a run asks of a file system. Another object with these methods may stand in its place."""

    def names(self, folder: Path) -> list[str]:
        """Of the files in a folder, in any order."""
        return os.listdir(folder)

    def exists(self, path: Path) -> bool:
        """Whether a file is there."""
        return is_there(path)

    def read(self, path: Path) -> bytes:
        """The content of a file."""
        return path.read_bytes()

    def write(self, path: Path, data: bytes) -> None:
        """Put a whole file there."""
        write_atomically(path, data)

    def remove(self, path: Path) -> None:
        """Delete a file that is not needed any more. If that fails now, it does no harm, and is tried again."""
        with suppress(OSError):
            path.unlink(missing_ok=True)


DISK = Disk()


@cache
def process_space() -> str:
    """Where the numbers of processes are ours: the machine since its start, and the container.

    Containers may share a host name and not see each other's processes; several machines may have one name.
    """
    facts = [socket.gethostname()]
    with suppress(OSError):  # Linux only
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        facts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of writers that were killed: at once where that can be known, else after an hour."""
    here = process_space()
    found: list[Path] = []
    with suppress(OSError):  # a folder that cannot be listed now
        found += folder.rglob(".*.tmp")
    for path in found:
        *_, process, _number, _suffix = path.name.split(".")
        with suppress(OSError):
            old = time.time() - path.stat().st_mtime > _ABANDONED_AFTER
            if old or (f".{here}." in path.name and not _is_alive(int(process) if process.isdigit() else 0)):
                path.unlink()


def _is_alive(process: int) -> bool:
    if os.name != "posix" or process <= 0:
        return True
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        pass
    return True


def read_json(path: Path, what: str) -> Any:
    """The content of a JSON file of ours."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OtptError(f"There is no {what} at {str(path)!r}; check the path.") from None
    except OSError as error:
        raise cannot_read(what, path, error) from None
    except ValueError:
        raise OtptError(
            f"The {what} {str(path)!r} is damaged: it is not JSON; check the path, or make it again."
        ) from None


def parse_json(text: str) -> Any:
    """Plain data of somebody's JSON text; ``ValueError`` if it is none, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Tables of somebody's TOML text; ``ValueError`` if it is none, also where it is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_there(path: Path) -> bool:
    """Whether a file of ours exists; unlike ``Path.exists``, a disk that does not answer is one sentence."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise OtptError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    return True


def as_json(value: Any) -> bytes:
    """JSON for people and programs; the same value gives the same bytes."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def csv_cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula; quoting is left to the writer.

    >>> csv_cell("=1+1"), csv_cell("ferry")
    ("'=1+1", 'ferry')
    """
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) or text.startswith(("\t", "\r")) else text
