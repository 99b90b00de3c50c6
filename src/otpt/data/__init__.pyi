from .classes import ClassList, read_class_list
from .dataset import IMAGE_SUFFIXES, Dataset, Sample, as_dataset
from .registered.checking import CheckReport, check_dataset
from .registered.downloads import download_dataset
from .registered.entry import DatasetEntry, Layout, find_entry
from .registered.layouts import DatasetNotFound, Found, find_records
from .registry import list_datasets, load_dataset
from .strata import stratified

__all__ = [
    "IMAGE_SUFFIXES",
    "CheckReport",
    "ClassList",
    "Dataset",
    "DatasetEntry",
    "DatasetNotFound",
    "Found",
    "Layout",
    "Sample",
    "as_dataset",
    "check_dataset",
    "download_dataset",
    "find_entry",
    "find_records",
    "list_datasets",
    "load_dataset",
    "read_class_list",
    "stratified",
]
