"""Predictions of any number of images, written to files that a repeated call continues.

    import otpt

    clf = otpt.load("ViT-B-16/openai", classes=["cat", "dog"])
    otpt.bulk.predict(clf, "photos/", "labels.parquet", workers=2)

:class:`RowStore` writes the rows of any other computation in the same way.
"""

from otpt.bulk.jobs import (
    Answer,
    ClassifierJob,
    EmbeddingJob,
    FeatureWorker,
    ImageWorker,
    Item,
)
from otpt.bulk.labelled import LabelledPredictions, read_labelled
from otpt.bulk.prediction import (
    BulkResult,
    ImageJob,
    Images,
    Monitor,
    PendingImage,
    embed,
    fit_job,
    open_images,
    predict,
    run,
)
from otpt.bulk.ranking import check_ranked, rank
from otpt.bulk.rows import Row, answer_rows, flat_row, uncertainty
from otpt.bulk.stamps import stamp_of
from otpt.bulk.store import Identified, RowStore
from otpt.bulk.writers import check_output

__all__ = [
    "Answer",
    "BulkResult",
    "ClassifierJob",
    "EmbeddingJob",
    "FeatureWorker",
    "Identified",
    "ImageJob",
    "ImageWorker",
    "Images",
    "Item",
    "LabelledPredictions",
    "Monitor",
    "PendingImage",
    "Row",
    "RowStore",
    "answer_rows",
    "check_output",
    "check_ranked",
    "embed",
    "fit_job",
    "flat_row",
    "open_images",
    "predict",
    "rank",
    "read_labelled",
    "run",
    "stamp_of",
    "uncertainty",
]
