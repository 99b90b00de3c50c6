"""``otpt datasets [check|get]``: list, verify and download data sets."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import otpt
from otpt.cli import options as o
from otpt.cli.terminal import note, print_json, print_table
from otpt.errors import OtptError, unknown

_LISTED = 20
"""Number of missing or unreadable images to print."""


def datasets(*, data: o.Data = None, json: o.Json = False) -> int:
    """List the data sets; with --data, also which of them are found and what is missing. 'otpt datasets check DATASET'
    verifies one, 'otpt datasets get DATASET' downloads it.

    otpt datasets --data ~/data
    """
    if data is not None and not os.path.isdir(os.path.expanduser(data)):
        raise OtptError(f"The data root {str(data)!r} is not a folder; give the folder of the data sets.")
    rows = [_row(entry, data) for entry in otpt.data.list_datasets()]
    if json:
        print_json(rows)
        return 0
    cells = []
    for row in rows:
        counts = ["?" if row[name] is None else str(row[name]) for name in ("classes", "test_images")]
        cells.append((row["name"], *counts, row["family"], row["title"] if data is None else _state(row, data)))
    print_table(("data set", "classes", "images", "family", "what it is" if data is None else "here"), cells, names=-2)
    for row in rows:
        if "missing" in row:
            print(f"\n{row['missing']}", end="")
    return 0


def check(
    dataset: o.Name,
    /,
    *,
    data: o.Data = None,
    classes: o.Classes = None,
    sample: Annotated[int, o.option("images to open, -1 for all", at_least=-1)] = 100,
    json: o.Json = False,
) -> int:
    """Verify the number of classes and images, look for every file and open a sample of them. Exit code 2 if anything
    is wrong.

    otpt datasets check dtd --data ~/data --sample -1
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another number of images than published is reported below
        found = otpt.data.load_dataset(dataset, root=data, classes=o.read_classes(classes))
    report = otpt.data.check_dataset(found, otpt.data.find_entry(dataset), sample=sample)
    if json:
        print_json({**asdict(report), "problems": report.problems, "ok": report.ok})
        return 0 if report.ok else 2
    print(f"{report.name}: {report.classes} classes, {report.images} images, {report.opened} of them opened")
    images = [f"missing: {name}" for name in report.missing]
    images += [f"unreadable: {name}: {reason}" for name, reason in report.unreadable]
    for line in (*report.problems, *images[:_LISTED]):
        print(f"  {line}")
    if len(images) > _LISTED:
        print(f"  … and {len(images) - _LISTED} more (--json lists all)")
    print("all good" if report.ok else "not good")
    return 0 if report.ok else 2


def get(
    dataset: Annotated[str, o.option("a data set of 'otpt datasets'", metavar="DATASET")],
    /,
    *,
    data: Annotated[Path, o.option("folder to download into", metavar="ROOT")],
) -> int:
    """Download a data set with torchvision, if that is supported.

    otpt datasets get dtd --data ~/data
    """
    from otpt.data.registered import SPLIT_FILES

    entry = otpt.data.find_entry(dataset)
    if entry is None:
        raise unknown("data set", dataset, [each.name for each in otpt.data.list_datasets()])
    folder = otpt.data.download_dataset(entry, data)
    print(f"{entry.name}: the images are in {folder}")
    try:
        otpt.data.find_records(entry, data)
    except OtptError as error:
        note(str(error))
        if entry.split_file:
            note(f"{entry.split_file} is not torchvision's: {SPLIT_FILES}.")
    return 0


def _row(entry: otpt.data.DatasetEntry, root: Path | None) -> dict[str, Any]:
    names = ("name", "title", "classes", "test_images", "family", "augmix", "prompt")
    row: dict[str, Any] = {name: getattr(entry, name) for name in names}
    if root is None:
        return row
    if not entry.layouts:
        return {**row, "state": "drawn on the spot" if entry.classes is not None else "not installed"}
    try:
        found = otpt.data.find_records(entry, root)
    except OtptError as error:
        state = "not found" if isinstance(error, otpt.data.DatasetNotFound) else "incomplete"
        return {**row, "state": state, "missing": str(error)}
    return {
        **row,
        "state": "found",
        "folder": str(found.folder),
        "layout": found.layout.style,
        "images": len(found.records),
        "missing_share": found.missing_share(),
    }


def _state(row: dict[str, Any], root: Path) -> str:
    if row["state"] != "found":
        return str(row["state"])
    folder, here = Path(row["folder"]), os.path.expanduser(root)
    folder = folder.relative_to(here) if folder.is_relative_to(here) else folder
    text = f"{folder.as_posix()} ({row['layout']})"
    if row["images"] != row["test_images"]:
        text += f", but {row['images']} images"
    if row["missing_share"]:
        text += f", about {max(1, round(100 * row['missing_share']))} % of the images missing"
    return text
