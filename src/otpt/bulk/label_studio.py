"""Tasks of Label Studio with predictions, and the labelling interface for them.

The format is Label Studio's "Basic JSON": a list of tasks with ``data`` and ``predictions``, whose ``result`` names a
control of the labelling interface (``from_name``) and the image (``to_name``). :mod:`otpt.data.label_studio` reads the
labels back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from otpt.bulk.rows import Row
from otpt.data.label_studio import CONTROL, IMAGE, LOCAL_FILES, NO, PATH, VERSION, YES
from otpt.data.sources import is_remote
from otpt.escapes import one_line
from otpt.methods import Task


class LabelStudio:
    """Tasks for a question.

    Args:
        task: what was asked.
        folder: folder below which Label Studio serves files, its ``LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT``.
    """

    def __init__(self, task: Task, folder: Path) -> None:
        self._task = task
        self._folder = folder

    def tasks_json(self, rows: Sequence[Row]) -> bytes:
        """Return the tasks of images in this order as JSON."""
        tasks = [self._task_of(number, row) for number, row in enumerate(rows, start=1)]
        return (json.dumps(tasks, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")

    def interface(self) -> bytes:
        """Return the labelling interface, to paste into the settings of a project."""
        several = self._task.independent_labels and len(self._task.classes) > 1
        choices = [f"    <Choice value={quoteattr(one_line(name))}/>" for name in self._choices]
        lines = [
            "<View>",
            f'  <Image name="{IMAGE}" value="${IMAGE}"/>',
            f'  <Choices name="{CONTROL}" toName="{IMAGE}" choice="{"multiple" if several else "single"}">',
            *choices,
            "  </Choices>",
            "</View>",
        ]
        return ("\n".join(lines) + "\n").encode("utf-8", "replace")

    @property
    def _choices(self) -> Sequence[str]:
        """Choices of an image: the classes, or yes and no for a single one."""
        return (YES, NO) if self._asks_one else self._task.classes

    @property
    def _asks_one(self) -> bool:
        return self._task.independent_labels and len(self._task.classes) == 1

    def _task_of(self, number: int, row: Row) -> Mapping[str, object]:
        name = str(row["image"])
        uncertainty = row["uncertainty"]
        assert isinstance(uncertainty, float)
        result = {
            "id": f"otpt-{number}",
            "type": "choices",
            "from_name": CONTROL,
            "to_name": IMAGE,
            "value": {"choices": self._choices_of(row)},
        }
        prediction = {"model_version": f"{VERSION}{row['method']}", "score": 1.0 - uncertainty, "result": [result]}
        return {"data": {IMAGE: self._address(name), PATH: name}, "predictions": [prediction]}

    def _choices_of(self, row: Row) -> list[str]:
        above = row.get("labels_above")
        if not isinstance(above, list):
            return [str(row["label"])]
        return [YES if above else NO] if self._asks_one else [str(name) for name in above]

    def _address(self, name: str) -> str:
        """Return where Label Studio finds an image: its address, or its path below the folder that it serves."""
        if is_remote(name):
            return name
        path = Path(os.path.abspath(name))
        below = path.relative_to(self._folder) if path.is_relative_to(self._folder) else path.relative_to(path.anchor)
        return LOCAL_FILES + quote(below.as_posix(), errors="surrogateescape")
