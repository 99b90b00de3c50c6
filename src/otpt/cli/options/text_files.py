"""Text files that an option names."""

from __future__ import annotations

import os
from pathlib import Path

from otpt.errors import OtptError, cannot_read


def read_lines(given: str, what: str) -> list[str]:
    """Non-empty lines of a UTF-8 text file; its path may begin with ``~``, which no shell expands after an ``@``."""
    path = Path(os.path.expanduser(given))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise cannot_read(what, path, error) from None
    except ValueError:
        raise OtptError(f"The {what} {str(path)!r} is not UTF-8 text; expected one name per line.") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
