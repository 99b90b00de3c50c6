"""Atomic file writes (temporary file, fsync, rename), and reading and writing of JSON and TOML."""

from __future__ import annotations

import json
import os
import socket
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from typing_extensions import TypeAliasType

from otpt.errors import OtptError, cannot_read

Json = TypeAliasType("Json", "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None")
"""A value that JSON can hold; also a type of fields of pydantic models."""

_ABANDONED_AFTER = 3600.0  # seconds; longer than any write
_ATTEMPTS = 3
_numbers = count()


def write_atomically(path: Path, data: bytes, *, exclusive: bool = False, durable: bool = True) -> bool:
    """Write a file atomically; return False if ``exclusive`` and the file already exists.

    Concurrent writers use different temporary names. With ``durable=False`` a power failure may leave the file empty
    or truncated; use it only for files that have a checksum and can be recomputed.
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
            return _rename(temporary, path, exclusive)
        except OSError as error:
            # remove_leftovers of another process may have deleted the temporary file
            if isinstance(error, FileNotFoundError) and attempt < _ATTEMPTS - 1:
                continue
            raise OtptError(
                f"Cannot write {str(path)!r}: {error.strerror or error}; free disk space or choose another folder, "
                "then repeat the command; completed work is preserved."
            ) from None
        finally:
            with suppress(OSError):  # remove_leftovers deletes it later
                temporary.unlink(missing_ok=True)
    raise AssertionError("the last attempt returns or raises")


def _rename(temporary: Path, path: Path, exclusive: bool) -> bool:
    if exclusive:
        try:
            os.link(temporary, path)  # unlike rename, fails if the file exists
            return True
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links
            if path.exists():
                return False
    os.replace(temporary, path)
    return True


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files of dead processes on this host, and files older than an hour of other hosts."""
    paths: list[Path] = []
    with suppress(OSError):  # folder not readable
        paths += folder.rglob(".*.tmp")
    for path in paths:
        *_, process, _number, _suffix = path.name.split(".")
        with suppress(OSError):
            ours = f".{socket.gethostname()}." in path.name and process.isdigit()
            old = time.time() - path.stat().st_mtime > _ABANDONED_AFTER
            if old or (ours and not _is_alive(int(process))):
                path.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only checks that the process exists
    except ProcessLookupError:
        return False
    except PermissionError:  # process of another user
        pass
    return True


def read_json(path: Path, what: str) -> Json:
    """Read a JSON file written by this package; ``what`` names its kind in errors."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OtptError(f"There is no {what} at {str(path)!r}; check the path.") from None
    except OSError as error:
        raise cannot_read(what, path, error) from None
    except ValueError:
        raise OtptError(f"The {what} {str(path)!r} is not valid JSON; check the path, or create it again.") from None


def parse_json(text: str) -> Json:
    """Parse JSON; raise ``ValueError`` for invalid or too deeply nested text."""
    try:
        value: Json = json.loads(text)
        return value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_toml(text: str) -> dict[str, object]:
    """Parse TOML; raise ``ValueError`` for invalid or too deeply nested text."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_there(path: Path) -> bool:
    """Return whether a file exists; raise :class:`OtptError` for an I/O error or an impossible name."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # ValueError for a null character
        raise OtptError(f"Cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}.") from None
    return True


def as_json(value: object) -> bytes:
    """Serialise a value as indented JSON, deterministically."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_text(path: Path, what: str = "file") -> str:
    """Read a UTF-8 file; ``what`` names it in the error."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise cannot_read(what, path, error) from None
