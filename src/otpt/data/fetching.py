"""Download of one file: progress, resumption after an interruption, and its published checksum."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from tqdm.auto import tqdm

from otpt._version import __version__
from otpt.data.archives import cannot_write
from otpt.data.downloads import RemoteFile
from otpt.errors import OtptError, describe_error
from otpt.files import parse_json

_TIMEOUT = httpx.Timeout(30.0)
_LOG_SECONDS = 30.0
_ATTEMPTS = 4
"""Number of attempts in a row that may end without a new byte."""
_PAUSE = 1.0  # seconds before the second attempt, doubled for each further one
PART = ".part"
"""Suffix of an unfinished download."""


class Transfer:
    """Progress of one download: a bar on a terminal, else a line every half minute; a context manager."""

    def __init__(self, name: str, *, show: bool = True) -> None:
        self._name, self._show = name, show
        self._logged = time.monotonic()
        self._bar: tqdm[object] | None = None

    def __enter__(self) -> Transfer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def update(self, done: int, total: int | None) -> None:
        """Set the number of bytes that are on the disk."""
        if not self._show:
            return
        if sys.stderr.isatty():
            if self._bar is None:
                self._bar = tqdm(desc=self._name, initial=done, unit="B", unit_scale=True, leave=False)
            self._bar.total = total
            self._bar.update(done - self._bar.n)
        elif time.monotonic() - self._logged >= _LOG_SECONDS:
            self._logged = time.monotonic()
            of = "" if total is None else f" of {as_size(total)}"
            print(f"{self._name}: {as_size(done)}{of}", file=sys.stderr, flush=True)


def as_size(count: int | None) -> str:
    """Format a number of bytes.

    >>> as_size(137_414_764), as_size(None)
    ('137.4 MB', '?')
    """
    if count is None:
        return "?"
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.1f} {unit}" if unit == "MB" else f"{amount:.0f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def fetch(file: RemoteFile, address: str, target: Path, *, show: bool = True) -> None:
    """Download a file to ``target``; a part of an earlier attempt is continued.

    Args:
        file: the file; one on Google Drive is downloaded with gdown, unless ``address`` is elsewhere.
        address: http(s) address.
        target: path of the complete file; until then the bytes are in ``target`` + ".part".
        show: whether to show progress.

    Raises:
        OtptError: if the file cannot be downloaded or the disk is full; what has arrived is preserved.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with Transfer(file.name, show=show) as transfer:
        try:
            if file.drive and address == file.address:
                _fetch_drive(file, target, transfer)
            else:
                _fetch_http(address, target, transfer)
        except OSError as error:
            raise cannot_write(str(target), error) from None


# ---- http -----------------------------------------------------------------------------------------------------------


class _Interrupted(Exception):
    """A connection that ended too early; the next attempt continues."""


def _fetch_http(address: str, target: Path, transfer: Transfer) -> None:
    part = target.with_name(target.name + PART)
    attempts = 0
    while True:
        before = _size_of(part)
        try:
            _continue(address, part, transfer)
            break
        except _Interrupted as error:
            attempts = 1 if _size_of(part) > before else attempts + 1
            if attempts >= _ATTEMPTS:
                raise _gave_up(address, error, _size_of(part)) from None
            time.sleep(_PAUSE * 2 ** (attempts - 1))
    os.replace(part, target)


def _gave_up(address: str, error: _Interrupted, arrived: int) -> OtptError:
    if not arrived:
        return OtptError(f"Cannot download {address!r} ({error}); check the connection and repeat the command.")
    return OtptError(
        f"The download of {address!r} was interrupted ({error}); repeat the command, which continues after the "
        f"{as_size(arrived)} that have arrived."
    )


def _continue(address: str, part: Path, transfer: Transfer) -> None:
    """Append the missing bytes to a part."""
    start = _size_of(part)
    headers = {"User-Agent": f"otpt/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        with (
            _client() as client,
            client.stream("GET", address, headers=headers) as response,
        ):
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                _check_whole(response, part, start)
                return
            total = _check_answer(response, address, start)
            mode = "ab" if response.status_code == httpx.codes.PARTIAL_CONTENT else "wb"
            with part.open(mode) as output:
                for chunk in response.iter_raw():
                    output.write(chunk)
                    transfer.update(output.tell(), total)
    except httpx.InvalidURL as error:
        raise OtptError(f"The address {address!r} is not valid ({error}); expected http:// or https://.") from None
    except httpx.UnsupportedProtocol:
        raise OtptError(f"The address {address!r} is not valid; expected http:// or https://.") from None
    except httpx.HTTPError as error:
        raise _Interrupted(describe_error(error)) from None
    if total is not None and _size_of(part) < total:
        raise _Interrupted("the server closed the connection")


def _client() -> httpx.Client:
    try:
        return httpx.Client(follow_redirects=True, timeout=_TIMEOUT)
    except (OSError, ValueError) as error:  # of the files and proxies that environment variables name
        raise OtptError(
            f"The settings of the network cannot be used ({describe_error(error)}); check the environment variables "
            "SSL_CERT_FILE, SSL_CERT_DIR and HTTPS_PROXY, or unset them."
        ) from None


def _check_answer(response: httpx.Response, address: str, start: int) -> int | None:
    """Return the size of the whole file, or None if it is unknown; raise for anything but the file."""
    status = response.status_code
    if status in (429, 500, 502, 503, 504):
        raise _Interrupted(f"the server answered {status} {response.reason_phrase}")
    if status not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
        raise OtptError(
            f"Cannot download {address!r}: the server answered {status} ({response.reason_phrase}); try again later, "
            f"or {_BY_HAND}."
        )
    if response.headers.get("Content-Type", "").startswith("text/html"):
        raise OtptError(
            f"{address!r} answers with a web page instead of the file, such as a quota or login page; try again later, "
            f"or {_BY_HAND}."
        )
    length = response.headers.get("Content-Length", "")
    if status == httpx.codes.OK:
        return int(length) if length.isdigit() else None
    unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
    covered, _, total = rest.partition("/")
    if unit != "bytes" or covered.partition("-")[0] != str(start):
        raise OtptError(f"{address!r} answers with another part of the file than requested; {_BY_HAND}.")
    return int(total) if total.isdigit() else None


_BY_HAND = "download it with a browser into the folder 'downloads' (see 'otpt datasets get --help')"


def _check_whole(response: httpx.Response, part: Path, start: int) -> None:
    """Accept a part that is the whole file; otherwise start again."""
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    if total != str(start):
        part.unlink()
        raise _Interrupted("the file on the server is shorter than before")


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


# ---- Google Drive ---------------------------------------------------------------------------------------------------


def _fetch_drive(file: RemoteFile, target: Path, transfer: Transfer) -> None:
    """Download a file from Google Drive with gdown, which follows its confirmation pages."""
    try:
        download: Callable[..., object] = importlib.import_module("gdown").download
    except ImportError:
        raise OtptError(
            f"{file.name} is on Google Drive, which needs a package; pip install 'otpt[download]', or download "
            f"{file.address} with a browser to {str(target)!r}."
        ) from None
    try:
        download(id=file.drive, output=str(target), quiet=True, resume=True, progress=transfer.update)
    except OSError as error:
        if error.errno is not None and not hasattr(error, "request"):  # requests' errors are OSErrors as well
            raise
        raise _drive_error(file, target, error) from None
    except Exception as error:  # gdown has many
        raise _drive_error(file, target, error) from None


def _drive_error(file: RemoteFile, target: Path, error: Exception) -> OtptError:
    return OtptError(
        f"Google Drive does not give {file.name} ({describe_error(error)}); try again later, or download "
        f"{file.address} with a browser to {str(target)!r} and repeat the command."
    )


# ---- checksums ------------------------------------------------------------------------------------------------------


def verify(file: RemoteFile, path: Path) -> str:
    """Compare a file with its published checksum.

    Returns:
        "MD5", "SHA-256", or "" if no checksum is known.

    Raises:
        OtptError: if it has another one.
    """
    algorithm, expected = file.checksum
    if not algorithm:
        return ""
    with path.open("rb") as opened:
        actual = hashlib.file_digest(opened, algorithm).hexdigest()
    if actual != expected and not (file.is_list and _content_digest(path) == expected):
        raise OtptError(
            f"{str(path)!r} has the {algorithm.upper()} {actual}, but {expected} is published; delete it and repeat "
            "the command, or accept the file with --unverified."
        )
    return {"md5": "MD5", "sha256": "SHA-256"}[algorithm]


def _content_digest(path: Path) -> str:
    """Return the SHA-256 of a JSON file in the white space of CoOp's files, or "" for other files."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError:
        return ""
    return hashlib.sha256(json.dumps(content, indent=4, separators=(",", ": ")).encode()).hexdigest()
