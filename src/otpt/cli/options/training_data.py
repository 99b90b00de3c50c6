"""Labelled images to learn from: which, and where they are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.options.class_names import add_classes_option, chosen_classes, take_back_datasets

if TYPE_CHECKING:
    from otpt.data import Dataset


def add_training_data_options(parser: argparse.ArgumentParser) -> None:
    """Which labelled images to learn from, and where they are."""
    parser.add_argument(
        "dataset",
        nargs="?",
        metavar="DATASET",
        help="a name (see 'otpt datasets'), or your own folder, table or shards",
    )
    parser.add_argument("--data", type=Path, metavar="ROOT", help="folder with the data sets")
    add_classes_option(parser)
    parser.add_argument("--split", help="split to learn from (default: train; your own data have only one)")


def has_splits(spec: str) -> bool:
    """Whether a data set may have other splits than "test", the only one of user data."""
    from otpt.data import find_entry

    return find_entry(spec) is not None or spec.startswith(("emoji/", "hf:"))


def training_data(options: argparse.Namespace) -> Dataset:
    """The data set that the options describe."""
    from otpt.data import load_dataset

    take_back_datasets(options, "dataset")
    spec = options.dataset
    split = options.split or ("train" if has_splits(spec) else "test")
    return load_dataset(spec, root=options.data, classes=chosen_classes(options), split=split)
