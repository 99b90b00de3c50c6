"""Pictures with labels: the paper's data sets, the emoji bench, and one's own.

>>> data = load_dataset("dtd", root="data")               # doctest: +SKIP
>>> data.class_names[data[0].label], data[0].source       # doctest: +SKIP
('banded', PosixPath('data/dtd/images/banded/banded_0060.jpg'))
"""

from __future__ import annotations

from otpt.data.checking import CheckReport, check_dataset
from otpt.data.classes import ClassList, read_class_list
from otpt.data.dataset import PICTURE_SUFFIXES, Dataset, Sample
from otpt.data.downloads import download_dataset
from otpt.data.entry import DatasetEntry, Layout, find_entry
from otpt.data.layouts import DatasetNotFound, Found, find_records
from otpt.data.registry import list_datasets, load_dataset

__all__ = [
    "PICTURE_SUFFIXES",
    "CheckReport",
    "ClassList",
    "Dataset",
    "DatasetEntry",
    "DatasetNotFound",
    "Found",
    "Layout",
    "Sample",
    "check_dataset",
    "download_dataset",
    "find_entry",
    "find_records",
    "list_datasets",
    "load_dataset",
    "read_class_list",
]
