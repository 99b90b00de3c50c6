"""Labelled images to learn from: which, and where they are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.options.class_names import add_classes_option, chosen_classes, has_splits, take_back_datasets
from otpt.cli.options.spellings import flag

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


def add_number(group: Any, name: str, default: float, words: str) -> None:
    """An option of a training with a number for its value."""
    kind = type(default)
    metavar = "N" if kind is int else "X"
    group.add_argument(flag(name), type=kind, default=default, metavar=metavar, help=f"{words} (default: %(default)s)")


def training_data(options: argparse.Namespace) -> Dataset:
    """The data set that the options describe."""
    from otpt.data import load_dataset

    take_back_datasets(options, "dataset")
    spec = options.dataset
    split = options.split or ("train" if has_splits(spec) else "test")
    return load_dataset(spec, root=options.data, classes=chosen_classes(options), split=split)
