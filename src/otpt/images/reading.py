"""The bytes of an image file: by its path, or from a file object."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from otpt.errors import OtptError


def read_file(source: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file."""
    path, name = Path(source), repr(str(source))
    try:
        if path.is_dir():
            raise OtptError(f"{name} is a folder, not an image; give the path of an image file.")
        if path.exists() and not path.is_file():
            raise OtptError(f"{name} is not a regular file; give the path of an image file.")
        return path.read_bytes()
    except FileNotFoundError:
        raise OtptError(f"There is no image at {name}; check the path.") from None
    except PermissionError:
        raise OtptError(f"No permission to read {name}; change its permissions or copy it.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, OtptError):
            raise
        raise OtptError(f"Cannot read {name}: {_reason(error)}.") from None


def is_file_object(source: object) -> bool:
    """Whether something can be read: an open file, ``io.BytesIO``, a pipe, a response of a web server."""
    return callable(getattr(source, "read", None))


def read_file_object(source: Any) -> bytes:
    """All that a file object holds, from its start if it can be rewound, as Pillow does; it is left where it stood."""
    try:
        stood = source.tell() if getattr(source, "seekable", bool)() else None
        if stood is not None:
            source.seek(0)
        data = source.read()
        if stood is not None:
            source.seek(stood)
    except (OSError, ValueError) as error:
        raise OtptError(f"Cannot read the given file object: {_reason(error)}.") from None
    if not isinstance(data, bytes):
        raise OtptError(
            f"The given file object yields {type(data).__name__}, not bytes; open the file in binary mode, 'rb'."
        )
    return data


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).rstrip(".")
