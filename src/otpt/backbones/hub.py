"""Downloads: a single sentence at once if there is no connection, and no code of a repository is run."""

from __future__ import annotations

import logging
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from otpt.errors import OtptError

_PROBE_SECONDS = 5.0


@contextmanager
def hub(what: str, *, local: bool = False) -> Iterator[None]:
    """Within this block, failures of the libraries that load models become one ``OtptError`` about ``what``.

    huggingface_hub retries an unreachable host for half a minute, so the connection is probed first; without one, only
    the cache is used. Nothing is probed for ``local`` models. The libraries' log messages are suppressed.
    """
    from huggingface_hub import constants

    before, level = constants.HF_HUB_OFFLINE, logging.root.manager.disable
    constants.HF_HUB_OFFLINE = before or (not local and not reachable(constants.ENDPOINT))
    logging.disable(logging.ERROR)
    try:
        yield
    except OtptError:
        raise
    except Exception as error:
        if constants.HF_HUB_OFFLINE and not local:
            raise unreachable(what, constants.ENDPOINT) from error
        raise OtptError(f"Cannot load {what}: {in_short(error)}.") from error
    finally:
        constants.HF_HUB_OFFLINE = before
        logging.disable(level)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without transformers' progress bar and its table of tensors that do not fit."""
    from transformers.utils import logging as theirs

    level, bar = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(level)
        if bar:
            theirs.enable_progress_bar()


def hub_file(repository: str, *names: str, what: str) -> Path:
    """The first of ``names`` that exists in the repository, from the cache or downloaded; ``what`` is for errors."""
    from huggingface_hub import hf_hub_download

    with hub(what):
        for name in names[:-1]:
            with suppress(Exception):
                return Path(hf_hub_download(repository, name))
        return Path(hf_hub_download(repository, names[-1]))


def reachable(url: str) -> bool:
    """Whether its host accepts a connection within a few seconds; behind a proxy the download has to find out."""
    parts = urlsplit(url)
    if parts.scheme in urllib.request.getproxies():
        return True
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False


def unreachable(what: str, url: str) -> OtptError:
    """The error for a download that is not possible."""
    return OtptError(
        f"Cannot get {what}: {urlsplit(url).hostname} cannot be reached and it is not in the local cache. Download its "
        "weights elsewhere and give the file's path, or local-dir:FOLDER, instead."
    )


def in_short(error: Exception) -> str:
    """The first 200 characters of a message, in one line."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
