"""Atomic file writes: to a temporary name, flushed to the disk, then renamed."""

from __future__ import annotations

import json
import os
import socket
import time
import tomllib
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from otpt.errors import OtptError, cannot_read

_ABANDONED_AFTER = 3600.0  # seconds; no write takes that long
_ATTEMPTS = 3
_numbers = count()


def write_atomically(path: Path, data: bytes, *, exclusive: bool = False, durable: bool = True) -> bool:
    """Write ``data`` so that ``path`` never holds a part of it; False if ``exclusive`` and it exists already.

    Concurrent writers of one path are safe: each has its own temporary name. Without ``durable`` a power
    failure may leave the file empty or torn; for files with a checksum that can be recomputed.
    """
    for attempt in range(_ATTEMPTS):
        temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            return _put(temporary, path, exclusive)
        except OSError as error:
            # another process may take our unfinished file for an abandoned one
            if isinstance(error, FileNotFoundError) and attempt < _ATTEMPTS - 1:
                continue
            raise OtptError(
                f"Cannot write {str(path)!r}: {error.strerror or error}; free disk space or choose another folder, "
                "then repeat the command: finished work is not lost."
            ) from None
        finally:
            with suppress(OSError):  # deleted later, as a leftover
                temporary.unlink(missing_ok=True)
    raise AssertionError("the last attempt returns or raises")


def _put(temporary: Path, path: Path, exclusive: bool) -> bool:
    if exclusive:
        try:
            os.link(temporary, path)  # unlike rename, it fails if another process was first
            return True
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
    os.replace(temporary, path)
    return True


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of dead writers: on this host at once, on others after an hour."""
    found: list[Path] = []
    with suppress(OSError):  # a folder that cannot be listed now
        found += folder.rglob(".*.tmp")
    for path in found:
        *_, process, _number, _suffix = path.name.split(".")
        with suppress(OSError):
            ours = f".{socket.gethostname()}." in path.name and process.isdigit()
            old = time.time() - path.stat().st_mtime > _ABANDONED_AFTER
            if old or (ours and not _is_alive(int(process))):
                path.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def read_json(path: Path, what: str) -> Any:
    """Return the content of a JSON file that this package wrote."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OtptError(f"There is no {what} at {str(path)!r}; check the path.") from None
    except OSError as error:
        raise cannot_read(what, path, error) from None
    except ValueError:
        raise OtptError(f"The {what} {str(path)!r} is not valid JSON; check the path, or create it again.") from None


def parse_json(text: str) -> Any:
    """Parse JSON; ``ValueError`` also for text that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; ``ValueError`` also for text that is nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_there(path: Path) -> bool:
    """Whether a file exists; an I/O error is an :class:`OtptError`."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise OtptError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    return True


def as_json(value: Any) -> bytes:
    """Return indented JSON; equal values give equal bytes."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def csv_cell(text: str) -> str:
    """Escape a text that a spreadsheet would read as a formula; quoting is left to the writer.

    >>> csv_cell("=1+1"), csv_cell("ferry")
    ("'=1+1", 'ferry')
    """
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) or text.startswith(("\t", "\r")) else text
