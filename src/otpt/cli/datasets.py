"""The data sets: ``otpt datasets``, ``datasets check``, ``datasets get`` and ``datasets prepare``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from otpt.cli import options as o
from otpt.cli.terminal import note, plural, print_json, print_table, say, show
from otpt.data import (
    CheckReport,
    DatasetEntry,
    DatasetNotFound,
    Download,
    Downloader,
    Found,
    check_dataset,
    find_entry,
    find_records,
    list_datasets,
    load_dataset,
    published_downloads,
)
from otpt.data.downloader import Plan
from otpt.data.fetching import as_size
from otpt.data.preparing import DEVKIT, prepare_imagenet, prepare_ucf101
from otpt.errors import OtptError
from otpt.files import Json

_LISTED = 20
"""Number of missing or unreadable images to print."""


def datasets(*, data: o.Data = None, json: o.Json = False) -> int:
    """List the data sets: size of the download, licence, and where they come from; with --data, also which
    are present, and missing files. 'otpt datasets get DATASET' downloads one, 'otpt datasets check' verifies it.

    otpt datasets --data ~/data
    """
    if data is not None and not os.path.isdir(os.path.expanduser(data)):
        raise OtptError(f"The data root {str(data)!r} is not a folder; give the folder of the data sets.")
    downloads = published_downloads()
    entries = [_DatasetState.of(entry, data, downloads.get(entry.name, Download())) for entry in list_datasets()]
    if json:
        print_json([entry.to_json() for entry in entries])
        return 0
    rows = []
    for state in entries:
        counts = ["?" if count is None else str(count) for count in (state.entry.classes, state.entry.test_images)]
        text = state.entry.title if data is None else state.text(data)
        rows.append((state.entry.name, *counts, state.size, text, state.download.licence, state.origin))
    titles = ("data set", "classes", "images", "download", "what it is" if data is None else "here", "licence", "from")
    print_table(titles, rows, names=-3)
    for state in entries:
        if state.missing is not None:
            print(f"\n{state.missing}", end="")
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
        loaded = load_dataset(dataset, root=data, classes=o.read_classes(classes))
    report = check_dataset(loaded, find_entry(dataset), sample=sample)
    if json:
        print_json({**asdict(report), "problems": report.problems, "ok": report.ok})
        return 0 if report.ok else 2
    show(f"{report.name}: {report.classes} classes, {report.images} images, {report.opened} of them opened")
    images = [f"missing: {name}" for name in report.missing]
    images += [f"unreadable: {name}: {reason}" for name, reason in report.unreadable]
    for line in (*report.problems, *images[:_LISTED]):
        show(f"  {line}")
    if len(images) > _LISTED:
        print(f"  … and {len(images) - _LISTED} more (--json lists all)")
    print("all good" if report.ok else "not good")
    return 0 if report.ok else 2


ALL = "all"
"""Name that stands for all data sets of the papers."""
_NOT_IN_ALL = ("imagenet-c",)  # of no table of the paper, and 70 GB


def get(
    *datasets: Annotated[str, o.option("data sets of 'otpt datasets', or all", metavar="DATASET")],
    data: Annotated[Path, o.option("folder to download into", metavar="ROOT")],
    mirror: Annotated[
        str, o.option("address of other copies: MIRROR/DATASET/FILE (default: the publishers')", metavar="URL")
    ] = "",
    sources: Annotated[
        Path | None, o.option("table of other addresses, sizes and checksums, as otpt/data/downloads.toml")
    ] = None,
    unverified: Annotated[bool, o.option("accept files with another checksum than the published one")] = False,
    keep: Annotated[bool, o.option("keep archives after they were unpacked")] = False,
    plan: Annotated[bool, o.option("only show what is missing, its size and where it comes from")] = False,
    json: o.Json = False,
) -> int:
    """Download data sets from their publishers, verify, unpack and check them. What is complete is left alone, and an
    interrupted download continues. A file that was downloaded by other means is used from ROOT/downloads/DATASET/FILE.
    Exit code 2 if a set is missing at the end.

    otpt datasets get dtd eurosat --data ~/data
    otpt datasets get all --data ~/data --plan
    otpt datasets get all --data ~/data --mirror http://localhost:8000/downloads
    """
    downloader = Downloader(
        data,
        mirror=mirror,
        sources=sources,
        verified=not unverified,
        keep=keep,
        show=not json,
        say=_quiet if json else say,
    )
    plans = [downloader.plan(name) for name in _names(datasets, published_downloads(sources))]
    if plan and json:
        print_json([_plan_to_json(item) for item in plans])
    elif not json:
        _print_plans(plans, downloader.free)
    if plan:
        return 0
    downloader.check_disk([item for item in plans if item.is_possible or mirror])
    results = [_get_one(downloader, item.entry.name) for item in plans]
    if json:
        print_json([result.to_json() for result in results])
    else:
        _print_results(results)
    return 0 if all(result.ok for result in results) else 2


def _quiet(_line: str) -> None:
    """Say nothing."""


def _names(datasets: Sequence[str], downloads: Mapping[str, Download]) -> list[str]:
    """Return the chosen data sets; without duplicates, and those that share files once."""
    if not datasets:
        raise OtptError(f"No data set was given; expected names such as dtd, or {ALL}. See 'otpt datasets'.")
    names: list[str] = []
    for name in datasets:
        if name == ALL:
            names += [key for key, value in downloads.items() if key not in _NOT_IN_ALL and not value.same_as]
        else:
            names.append(name)
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class _Result:
    """What became of one data set: the report of its check, or why there is none."""

    name: str
    report: CheckReport | None
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.report is not None and self.report.ok

    def to_json(self) -> dict[str, Json]:
        """Return plain data."""
        if self.report is None:
            return {"name": self.name, "ok": False, "error": self.error}
        return {"name": self.name, **asdict(self.report), "problems": self.report.problems, "ok": self.ok}


def _get_one(downloader: Downloader, name: str) -> _Result:
    """Get a data set; an error is part of the result, so that the others follow."""
    try:
        return _Result(name, downloader.get(name))
    except OtptError as error:
        return _Result(name, None, str(error))


def _print_plans(plans: Sequence[Plan], free: int) -> None:
    """Show what will be downloaded."""
    rows = []
    for item in plans:
        size = "complete"
        if item.files:
            size = as_size(item.size) if item.is_size_known else "size not published"
        rows.append((item.entry.name, size, item.download.licence, item.download.account or item.download.page))
    print_table(("data set", "to download", "licence", "from"), rows, names=4)
    for item in plans:
        if item.files and item.download.note:
            note(f"{item.entry.name}: {item.download.note}")
    print(f"{as_size(sum(item.size for item in plans))} in all; {as_size(free)} are free")


def _plan_to_json(item: Plan) -> dict[str, Json]:
    files: list[Json] = []
    for file in item.files:
        algorithm, checksum = file.checksum
        known: Json = f"{algorithm}:{checksum}" if checksum else None
        files.append({"name": file.name, "address": file.address, "bytes": file.size, "checksum": known})
    return {"name": item.entry.name, "bytes": item.size, **_source_to_json(item.download), "files": files}


def _source_to_json(download: Download) -> dict[str, Json]:
    return {
        "licence": download.licence,
        "page": download.page,
        "account": download.account,
        "download": "get" if download.is_automatic else "by hand",
        "next": download.next,
    }


def _print_results(results: Sequence[_Result]) -> None:
    for result in results:
        if result.report is not None:
            state = "all good" if result.ok else f"not good: {'; '.join(result.report.problems)}"
            show(f"{result.name}: {plural(result.report.images, 'test image')}, {state}")
    for result in results:
        if result.report is None:
            say(result.error)
    missing = [result.name for result in results if not result.ok]
    if missing:
        show(f"missing: {', '.join(missing)}")


def prepare(
    dataset: Annotated[Literal["imagenet", "ucf101"], o.option("what the files are")],
    /,
    *,
    source: Annotated[
        Path, o.option("ILSVRC2012_img_val.tar; or UCF101's videos, in a folder or archive", "--from", metavar="PATH")
    ],
    data: Annotated[Path, o.option("folder with the data sets", metavar="ROOT")],
    devkit: Annotated[
        Path | None, o.option(f"ImageNet's devkit (default: {DEVKIT} next to the images)", metavar="PATH")
    ] = None,
) -> int:
    """Sort ImageNet's validation images into class folders by the devkit's ground truth, or save the middle frames of
    UCF101's videos. What is already in its place stays, so that an interrupted command continues.

    otpt datasets prepare imagenet --from ILSVRC2012_img_val.tar --devkit ILSVRC2012_devkit_t12.tar.gz --data ~/data
    otpt datasets prepare ucf101 --from UCF-101 --data ~/data
    """
    source, root = source.expanduser(), data.expanduser()
    if dataset == "imagenet":
        done = prepare_imagenet(source, (devkit or source.parent / DEVKIT).expanduser(), root)
    elif devkit is not None:
        raise OtptError(f"--devkit was given {str(devkit)!r}, but only ImageNet has one; leave it out.")
    else:
        done = prepare_ucf101(source, root)
    show(f"{dataset}: {plural(done, 'image')} written")
    return check(dataset, data=root)


@dataclass(frozen=True)
class _DatasetState:
    """A registered data set, and what of it is in a folder.

    Attributes:
        entry: the data set.
        download: where it comes from.
        state: "found", or what is wrong; None if no folder was given.
        missing: message about missing files, or None.
        found: the images, or None.
    """

    entry: DatasetEntry
    download: Download
    state: str | None = None
    missing: str | None = None
    found: Found | None = None

    @classmethod
    def of(cls, entry: DatasetEntry, root: Path | None, download: Download) -> _DatasetState:
        """Look for a data set under a folder, if there is one."""
        if root is None:
            return cls(entry, download)
        if not entry.layouts:
            return cls(entry, download, "drawn on the spot" if entry.classes is not None else "not installed")
        try:
            return cls(entry, download, "found", found=find_records(entry, root))
        except OtptError as error:
            state = "not found" if isinstance(error, DatasetNotFound) else "incomplete"
            return cls(entry, download, state, str(error))

    @property
    def size(self) -> str:
        """Size of the download, "" if there is none."""
        if self.download.size is not None:
            return as_size(self.download.size)
        return f"{as_size(self.download.known_size)}+" if self.download.known_size else ""

    @property
    def origin(self) -> str:
        """How to get it."""
        if self.download.same_as:
            return f"as {self.download.same_as}"
        if self.download.is_automatic:
            return f"otpt datasets get {self.entry.name}"
        return f"{self.download.page} (account)" if self.download.account else self.download.page

    def to_json(self) -> dict[str, Json]:
        """Return plain data."""
        names = ("name", "title", "classes", "test_images", "family", "augmix", "prompt")
        values: dict[str, Json] = {name: getattr(self.entry, name) for name in names}
        if self.entry.layouts:
            values |= {"bytes": self.download.size, **_source_to_json(self.download)}
        if self.state is not None:
            values["state"] = self.state
        if self.missing is not None:
            values["missing"] = self.missing
        if self.found is not None:
            values["folder"] = str(self.found.folder)
            values["layout"] = self.found.layout.style
            values["images"] = len(self.found.records)
            values["missing_share"] = self.found.missing_share()
        return values

    def text(self, root: Path) -> str:
        """Return where it is under the folder, and what is unusual."""
        if self.found is None:
            return str(self.state)
        folder = Path(self.found.folder)
        root = root.expanduser()
        folder = folder.relative_to(root) if folder.is_relative_to(root) else folder
        text = f"{folder.as_posix()} ({self.found.layout.style})"
        if len(self.found.records) != self.entry.test_images:
            text += f", but {len(self.found.records)} images"
        share = self.found.missing_share()
        if share:
            text += f", about {max(1, round(100 * share))} % of the images missing"
        return text
