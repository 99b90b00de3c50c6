"""``otpt datasets``: list data sets, and find, check or download them.

otpt datasets --data DATA
otpt datasets check dtd --data DATA
otpt datasets get dtd --data DATA
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.notes import tell
from otpt.cli.options.class_names import add_classes_option, chosen_classes, take_back_datasets
from otpt.cli.terminal import Column, print_columns
from otpt.errors import OtptError, unknown

if TYPE_CHECKING:
    from otpt.data import DatasetEntry

_LISTED = 10  # at most this many missing or unreadable images are printed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``datasets`` and its two sub-commands."""
    parser.description = "List the data sets; with --data, also which of them were found and what is missing."
    parser.add_argument("--data", type=Path, metavar="ROOT", help="folder with the data sets")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run_list)
    below = parser.add_subparsers(metavar="check|get", parser_class=type(parser))
    check = below.add_parser(
        "check",
        help="verify counts and open a sample",
        description="Verify the number of classes and images, look for every file and open a sample of them. "
        "Exit code 2 if anything is wrong.",
    )
    check.add_argument(
        "name", nargs="?", metavar="DATASET", help="a data set of 'otpt datasets', or your own folder, table or shards"
    )
    add_classes_option(check)
    check.add_argument(
        "--sample", type=int, default=100, metavar="N", help="images to open, -1 for all (default: %(default)s)"
    )
    check.set_defaults(run=run_check)
    get = below.add_parser("get", help="download", description="Download a data set with torchvision, if supported.")
    get.add_argument("name", metavar="NAME", help="a data set of 'otpt datasets'")
    get.set_defaults(run=run_get)
    for sub in (check, get):
        # SUPPRESS keeps what was given before the sub-command: `otpt datasets --data ROOT check dtd`.
        sub.add_argument(
            "--data", type=Path, metavar="ROOT", default=argparse.SUPPRESS, help="folder with the data sets"
        )
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="as JSON")


def run_list(options: argparse.Namespace) -> int:
    """Print the registered data sets and their state."""
    from otpt.data import list_datasets

    if options.data is not None and not os.path.isdir(os.path.expanduser(options.data)):
        raise OtptError(f"The data root {str(options.data)!r} is not a folder; give the folder of the data sets.")
    rows = [_row(entry, options.data) for entry in list_datasets()]
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    last = [row["title"] if options.data is None else _state(row, options.data) for row in rows]
    columns = [
        Column("data set", [row["name"] for row in rows], is_name=True),
        Column("classes", [_count(row["classes"]) for row in rows]),
        Column("images", [_count(row["test_images"]) for row in rows]),
        Column("family", [row["family"] for row in rows], is_name=True),
        Column("what it is" if options.data is None else "here", last, is_name=True),
    ]
    print_columns(columns)
    missing = [row["missing"] for row in rows if "missing" in row]
    if missing:
        print("\n" + "\n".join(missing))
    return 0


def run_check(options: argparse.Namespace) -> int:
    """Print what is wrong with a data set; 2 if something is."""
    from otpt.data import check_dataset, find_entry, load_dataset

    if options.sample < -1:
        raise OtptError(f"--sample was given {options.sample}; expected a number of images, or -1 for all.")
    take_back_datasets(options, "name")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another number of images than published: reported below
        data = load_dataset(options.name, root=options.data, classes=chosen_classes(options))
    report = check_dataset(data, find_entry(options.name), sample=options.sample)
    if options.json:
        print(json.dumps({**asdict(report), "problems": report.problems, "ok": report.ok}, ensure_ascii=False))
        return 0 if report.ok else 2
    print(f"{report.name}: {report.classes} classes, {report.images} images, {report.opened} of them opened")
    for problem in report.problems:
        print(f"  {problem}")
    for name in report.missing[:_LISTED]:
        print(f"  missing: {name}")
    for name, reason in report.unreadable[:_LISTED]:
        print(f"  unreadable: {name}: {reason}")
    hidden = max(0, len(report.missing) - _LISTED) + max(0, len(report.unreadable) - _LISTED)
    if hidden:
        print(f"  … and {hidden} more (--json lists all)")
    print("all good" if report.ok else "not good")
    return 0 if report.ok else 2


def run_get(options: argparse.Namespace) -> int:
    """Download, and report what remains to be done by hand."""
    from otpt.data import download_dataset, find_entry, find_records, list_datasets
    from otpt.data.registered.downloads import SPLIT_FILES

    entry = find_entry(options.name)
    if entry is None:
        raise unknown("data set", options.name, [entry.name for entry in list_datasets()])
    if options.data is None:
        raise OtptError("--data ROOT is needed: the folder to download into.")
    folder = download_dataset(entry, options.data)
    print(f"{entry.name}: the images are in {folder}")
    try:
        find_records(entry, options.data)
    except OtptError as error:
        tell(str(error))
        if entry.split_file:
            tell(f"{entry.split_file} is not torchvision's: {SPLIT_FILES}.")
    return 0


def _row(entry: DatasetEntry, root: Path | None) -> dict[str, Any]:
    from otpt.data import DatasetNotFound, find_records

    row: dict[str, Any] = {
        "name": entry.name,
        "title": entry.title,
        "classes": entry.classes,
        "test_images": entry.test_images,
        "family": entry.family,
        "augmix": entry.augmix,
        "prompt": entry.prompt,
    }
    if root is None:
        return row
    if not entry.layouts:
        row["state"] = "drawn on the spot" if entry.classes is not None else "not installed"
        return row
    try:
        found = find_records(entry, root)
    except OtptError as error:
        row["state"] = "not found" if isinstance(error, DatasetNotFound) else "incomplete"
        row["missing"] = str(error)
        return row
    row.update(state="found", folder=str(found.folder), layout=found.layout.style, images=len(found.records.ids))
    row["missing_share"] = found.missing_share()
    return row


def _state(row: dict[str, Any], root: Path) -> str:
    if row["state"] != "found":
        return str(row["state"])
    folder, here = Path(row["folder"]), os.path.expanduser(root)
    folder = folder.relative_to(here) if folder.is_relative_to(here) else folder
    note = "" if row["images"] == row["test_images"] else f", but {row['images']} images"
    if row["missing_share"]:
        note += f", about {max(1, round(100 * row['missing_share']))} % of the images missing"
    return f"{folder.as_posix()} ({row['layout']}){note}"


def _count(number: int | None) -> str:
    return "?" if number is None else str(number)
