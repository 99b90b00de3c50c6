"""Registered data sets from their public addresses: what is missing, download, verification, unpacking, check.

Archives are in DATA/downloads/NAME/ until they are unpacked. A file that was put there by hand is used like a download.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from otpt.data.archives import archive_errors, is_archive, unpack
from otpt.data.downloads import Download, RemoteFile, published_downloads
from otpt.data.fetching import PART, as_size, fetch, verify
from otpt.data.preparing import PREPARATIONS
from otpt.data.registered import CheckReport, DatasetEntry, check_dataset, find_entry, registered_dataset
from otpt.errors import OtptError, unknown
from otpt.files import parse_json, read_text

FOLDER = "downloads"
"""Folder of archives below the data root."""
_UNPACKED = ".unpacked"
_SAMPLE = 100
_WAIT = 0.5  # seconds to wait for the lock before saying so


class NeedsAccount(OtptError):
    """A data set that nobody can download without an account."""


@dataclass(frozen=True)
class Plan:
    """What is left to do for a data set.

    Attributes:
        entry: the data set.
        download: where it comes from.
        files: files that are needed; none if the set is complete.
        arrived: bytes of them that are already on the disk.
    """

    entry: DatasetEntry
    download: Download
    files: tuple[RemoteFile, ...]
    arrived: int

    @property
    def size(self) -> int:
        """Bytes to download, as far as sizes are known."""
        return max(0, sum(file.size or 0 for file in self.files) - self.arrived)

    @property
    def disk(self) -> int:
        """Bytes of free disk that are needed: the archives that are missing, and their content."""
        archives = sum(file.size or 0 for file in self.files if not file.is_list)
        return self.size + archives

    @property
    def is_possible(self) -> bool:
        """Whether all needed files have public addresses."""
        return self.download.is_automatic

    @property
    def is_size_known(self) -> bool:
        """Whether the sizes of all needed archives are known."""
        return all(file.size is not None for file in self.files if not file.is_list)


class Downloader:
    """Downloads of registered data sets below one data root.

    Args:
        root: the data root, which is created if necessary.
        mirror: base address of other copies of the files, MIRROR/NAME/FILE; "" for the published addresses.
        sources: TOML table that replaces addresses, sizes and checksums of data sets.
        verified: whether files must have their published checksum.
        keep: whether archives stay after they were unpacked.
        show: whether to show progress.
        say: called with a line about each step.

    Example:
        >>> Downloader("data").plan("dtd").download.licence  # doctest: +SKIP
        'research only'
    """

    def __init__(
        self,
        root: str | Path,
        *,
        mirror: str = "",
        sources: Path | None = None,
        verified: bool = True,
        keep: bool = False,
        show: bool = True,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.root = Path(os.path.expanduser(root))
        self._mirror = mirror.rstrip("/")
        self._downloads = published_downloads(sources)
        self._verified, self._keep = verified, keep
        self._show, self._say = show, say

    def source(self, name: str) -> tuple[DatasetEntry, Download]:
        """Return a data set, or the one whose files it has, and where it comes from."""
        entry = find_entry(name)
        if entry is None:
            raise unknown("data set", name, self._downloads)
        download = self._downloads.get(entry.name, Download())
        if download.same_as:
            return self.source(download.same_as)
        return replace(entry, test_images=download.test_images or entry.test_images), download

    def plan(self, name: str) -> Plan:
        """Return what is left to do for a data set; nothing is downloaded or changed."""
        entry, download = self.source(name)
        files: Sequence[RemoteFile] = ()
        if self._report(entry, download, 0) is None:
            files = [file for file in download.files if not (file.is_list and self._has_list(entry, file))]
        arrived = sum(min(file.size or 0, self._arrived(entry, file)) for file in files)
        return Plan(entry, download, tuple(files), arrived)

    def get(self, name: str) -> CheckReport:
        """Download what is missing of a data set, verify and unpack it, and check the result.

        Raises:
            OtptError: if something is missing; what was downloaded is preserved.
        """
        entry, download = self.source(name)
        with self._lock(entry.name):
            report = self._report(entry, download, _SAMPLE)
            if report is None:
                self._check_sources(entry, download)
                for file in download.files:
                    if file.is_list and not self._has_list(entry, file):
                        self._get_list(entry, file)
                report = self._report(entry, download, _SAMPLE)
            if report is None:
                self._get_archives(entry, download)
        return report or self._check(entry, _SAMPLE)

    def check_disk(self, plans: Sequence[Plan]) -> None:
        """Raise an :class:`OtptError` if the disk has no room for the plans."""
        largest = max((plan.disk - plan.size for plan in plans), default=0)
        kept = sum(plan.disk for plan in plans) if self._keep else sum(plan.size for plan in plans) + largest
        free = self.free
        if kept > free:
            raise OtptError(
                f"{as_size(kept)} are needed below {str(self.root)!r}, but {as_size(free)} are free; free space, or "
                "get fewer data sets at once."
            )

    @property
    def free(self) -> int:
        """Free bytes of the disk of the data root."""
        folder = self.root.absolute()
        while not folder.is_dir():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    # ---- what is there ----------------------------------------------------------------------------------------------

    def _report(self, entry: DatasetEntry, download: Download, sample: int) -> CheckReport | None:
        """Return the report of a complete data set, or None if something is missing or an archive is not unpacked."""
        if any(self._is_pending(entry, file) for file in download.files):
            return None
        try:
            report = self._check(entry, sample)
        except OtptError:
            return None
        return report if report.ok else None

    def _check(self, entry: DatasetEntry, sample: int) -> CheckReport:
        """Look for all images, and open a sample of them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # another number of images is in the report
            return check_dataset(registered_dataset(entry, self.root, "test"), entry, sample=sample)

    def _is_pending(self, entry: DatasetEntry, file: RemoteFile) -> bool:
        path = self._path(entry, file)
        unfinished = path.with_name(path.name + PART).exists()
        return unfinished or (path.exists() and not path.with_name(path.name + _UNPACKED).exists())

    def _arrived(self, entry: DatasetEntry, file: RemoteFile) -> int:
        path = self._path(entry, file)
        sizes = [
            candidate.stat().st_size for candidate in (path, path.with_name(path.name + PART)) if candidate.exists()
        ]
        return max(sizes, default=0)

    def _has_list(self, entry: DatasetEntry, file: RemoteFile) -> bool:
        folders = [self.root, self.root / "data_splits", self.root / file.to]
        for layout in entry.layouts:
            below = Path(layout.folder)
            folders += [self.root / below, *(self.root / parent for parent in below.parents)]
        return any((folder / file.name).is_file() for folder in folders)

    def _path(self, entry: DatasetEntry, file: RemoteFile) -> Path:
        return self.root / FOLDER / entry.name / file.name

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _check_sources(self, entry: DatasetEntry, download: Download) -> None:
        """Raise for a file that can neither be downloaded nor was put there by hand."""
        folder = self.root / FOLDER / entry.name
        folder.mkdir(parents=True, exist_ok=True)
        closed = [file.name for file in download.files if not self._address(entry, file)]
        absent = [name for name in closed if not (folder / name).exists()]
        if download.files and not absent:
            return
        account = f"needs an account of {download.account}" if download.account else "has no public address here"
        files = f"download {', '.join(absent)} into {str(folder)!r} and repeat the command" if absent else ""
        steps = "; or: ".join(step for step in (files, download.next) if step).replace("DATA", str(self.root))
        raise NeedsAccount(f"{entry.name} {account} ({download.page or 'see its publisher'}); {steps}.")

    def _address(self, entry: DatasetEntry, file: RemoteFile) -> str:
        return f"{self._mirror}/{entry.name}/{file.name}" if self._mirror else file.address

    def _get_list(self, entry: DatasetEntry, file: RemoteFile) -> None:
        """Download a split file to where the reader of the images that are there looks for it."""
        path = self._fetch(entry, file)
        try:
            parse_json(read_text(path, "split file"))
        except ValueError:
            raise OtptError(f"{str(path)!r} is not a split file in JSON; delete it and repeat the command.") from None
        present = [Path(layout.folder).parts[0] for layout in entry.layouts if (self.root / layout.folder).is_dir()]
        folder = self.root / (present[0] if present else file.to)
        with archive_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            os.replace(path, folder / file.name)

    def _get_archives(self, entry: DatasetEntry, download: Download) -> None:
        archives = [file for file in download.files if not file.is_list]
        if download.prepare:
            paths = {file.name: self._fetch(entry, file) for file in archives}
            self._say(f"{entry.name}: sorting the images")
            PREPARATIONS[download.prepare](paths, self.root, self._show)
            for path in paths.values():
                self._finish(path)
            return
        for file in archives:
            path = self._fetch(entry, file)
            self._say(f"{entry.name}: unpacking {file.name}")
            counts = unpack(path, file.place, self.root, inner=file.inner)
            if counts.links:
                self._say(f"{entry.name}: {counts.links} links in {file.name} were left out")
            self._finish(path)

    def _finish(self, archive: Path) -> None:
        """Delete an archive that was unpacked, or mark it."""
        if self._keep:
            archive.with_name(archive.name + _UNPACKED).touch()
        else:
            archive.unlink()

    def _fetch(self, entry: DatasetEntry, file: RemoteFile) -> Path:
        """Return the path of a file that was downloaded and verified."""
        path = self._path(entry, file)
        if not path.exists():
            address = self._address(entry, file)
            part = self._arrived(entry, file)
            rest = f", {as_size(part)} of it are there" if part else ""
            self._say(f"{entry.name}: downloading {file.name} ({as_size(file.size)}{rest})")
            fetch(file, address, path, show=self._show)
            if not file.is_list and not is_archive(path):
                path.unlink()
                raise OtptError(
                    f"{address!r} does not answer with a tar or zip archive; try again later, or download {file.name} "
                    f"with a browser to {str(path)!r} and repeat the command."
                )
        if self._verified:
            checksum = verify(file, path)
            self._say(f"{entry.name}: {file.name} " + (f"has its {checksum}" if checksum else "has no known checksum"))
        return path

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Hold the lock of a data set; another process that downloads it is waited for."""
        path = self.root / FOLDER / f".{name}.lock"
        with archive_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=_WAIT)
        except Timeout:
            self._say(f"{name}: waiting for another process that gets it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
