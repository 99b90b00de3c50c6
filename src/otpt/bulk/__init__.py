"""Predictions of any number of images, written to files that a repeated call continues.

    import otpt

    clf = otpt.load("ViT-B-16/openai", classes=["cat", "dog"])
    otpt.bulk.predict(clf, "photos/", "labels.parquet", workers=2)

:class:`RowStore` writes the rows of any other computation in the same way.
"""

from otpt.bulk.jobs import (
    READERS,
    Answer,
    ClassifierJob,
    FeatureWorker,
    Item,
    Processes,
    Worker,
    Workers,
    chunks,
    read_ahead,
)
from otpt.bulk.prediction import BulkResult, Images, Monitor, PendingImage, open_images, predict, run
from otpt.bulk.rows import Row, answer_rows, flat_row
from otpt.bulk.stamps import stamp_of
from otpt.bulk.store import Identified, RowStore
from otpt.bulk.writers import check_output

__all__ = [
    "READERS",
    "Answer",
    "BulkResult",
    "ClassifierJob",
    "FeatureWorker",
    "Identified",
    "Images",
    "Item",
    "Monitor",
    "PendingImage",
    "Processes",
    "Row",
    "RowStore",
    "Worker",
    "Workers",
    "answer_rows",
    "check_output",
    "chunks",
    "flat_row",
    "open_images",
    "predict",
    "read_ahead",
    "run",
    "stamp_of",
]
