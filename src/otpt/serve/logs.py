"""Logs as one JSON object per line, for programs that collect them. They hold no image, label or token."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any


class JsonFormatter(logging.Formatter):
    """``{"time": …, "level": …, "message": …}`` and the fields that a record carries."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        found |= {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)


def log_config(level: str) -> dict[str, Any]:
    """For uvicorn, as :func:`logging.config.dictConfig` takes it: everything to standard error."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": f"{__name__}.{JsonFormatter.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
        "loggers": {
            "otpt.serve": {"handlers": ["stderr"], "level": level.upper(), "propagate": False},
            "uvicorn": {"handlers": ["stderr"], "level": level.upper(), "propagate": False},
        },
    }
