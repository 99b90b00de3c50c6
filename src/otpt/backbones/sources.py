"""Registry of model sources, and downloads.

Loading a model leaves the host program alone: no logging configuration and no constant of another library is changed.
Files are looked up with ``local_files_only=True`` if the Hugging Face hub cannot be reached.
"""

from __future__ import annotations

import logging
import socket
import threading
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from huggingface_hub import constants, hf_hub_download
from torch import nn

from otpt.backbones.modules import Tokenizer
from otpt.errors import OtptError
from otpt.plugins import restorable

DRAWINGS, PHOTOGRAPHS = "pocket", "pocket-photo"
EMBEDDED = (PHOTOGRAPHS, DRAWINGS)
"""Names of the models that ship with the package."""
_PROBE_SECONDS = 5.0


class Parts(NamedTuple):
    """Parts of a backbone, returned by a source."""

    model: nn.Module  # with open_clip's interface, see ClipBackbone
    tokenizer: Tokenizer
    preprocess: object  # see read_preprocessing
    architecture: str


class Source(NamedTuple):
    """Source of models."""

    form: str  # such as "hf:ORG/NAME"
    description: str
    load: Callable[[str, bool | None], Parts]


SOURCES: dict[str, Source] = restorable({})
"""Sources by prefix ("hf" for "hf:ORG/NAME"), or by the whole form if it has no colon."""


def register_source(form: str, description: str, load: Callable[[str, bool | None], Parts]) -> None:
    """Register a source of models.

    Args:
        form: form of its specs, ``PREFIX:REST`` or a single name; listed by ``otpt models``.
        description: one-line description for ``otpt models``.
        load: function of the text after the colon and the user's ``quick_gelu`` that returns the parts of a backbone.
    """
    SOURCES[form.partition(":")[0]] = Source(form, description, load)


class QuickGeluWarning(UserWarning):
    """Warning that a model may run with another activation than it was trained with."""


class AssumedPartsWarning(UserWarning):
    """Warning that a model has no tokenizer or processor of its own, so that CLIP's are used."""


def choose_gelu(asked: bool | None, needed: bool | None, named: bool | None, source: str) -> bool:
    """Return whether to use QuickGELU, x·σ(1.702x), instead of GELU; warn if the choice is doubtful.

    Args:
        asked: choice of the user, which takes precedence.
        needed: activation used in training, if known.
        named: activation of the named architecture, if any.
        source: name of the weights in warnings.
    """
    words = {True: "QuickGELU", False: "GELU"}
    chosen = next((choice for choice in (asked, needed, named) if choice is not None), False)
    warning = None
    if asked is needed is named is None:
        warning = (
            f"It is unknown whether {source} was trained with GELU or QuickGELU; using GELU. Pass quick_gelu=True or "
            "False to choose."
        )
    elif needed is not None and chosen != needed:
        warning = (
            f"{source} was trained with {words[needed]}, but runs with {words[chosen]} as requested; expect wrong "
            "predictions."
        )
    elif asked is None and needed is not None and named is not None and named != needed:
        warning = (
            f"The architecture given for {source} has {words[named]}, but the weights were trained with "
            f"{words[needed]}; using {words[needed]}. Pass quick_gelu={named} to override."
        )
    if warning:
        warnings.warn(warning, QuickGeluWarning, stacklevel=6)  # attributed to the caller of load_backbone
    return chosen


@contextmanager
def hub(what: str, *, local: bool = False) -> Iterator[bool]:
    """Raise errors of model libraries in this block as ``OtptError`` about ``what``.

    Yield whether only local files can be used, the value of ``local_files_only`` in calls of huggingface_hub and
    transformers. huggingface_hub retries an unreachable host for half a minute, so the connection is tested first,
    except for ``local`` models and if ``HF_HUB_OFFLINE`` is set.
    """
    offline = local or constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT)
    try:
        yield offline
    except OtptError:
        raise
    except Exception as error:
        if offline and not local:
            raise unreachable(what, constants.ENDPOINT) from error
        raise OtptError(f"Cannot load {what}: {summary(error)}.") from error


def hub_file(repository: str, *names: str, what: str) -> Path:
    """Return the path of the first file of ``names`` in a repository, cached or downloaded."""
    with hub(what) as offline:
        return download(repository, *names, offline=offline)


def download(repository: str, *names: str, offline: bool) -> Path:
    """Return the path of the first file of ``names`` in a repository, from the cache only if ``offline``."""
    for name in names[:-1]:
        with suppress(Exception):
            return Path(hf_hub_download(repository, name, local_files_only=offline))
    return Path(hf_hub_download(repository, names[-1], local_files_only=offline))


class _OtherThreads(logging.Filter):
    """Filter that drops the records of the thread that created it."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return threading.get_ident() != self._thread


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep the handlers of the logger "transformers" from emitting records of this thread; all else is unchanged."""
    handlers = list(logging.getLogger("transformers").handlers)
    only_others = _OtherThreads()
    for handler in handlers:
        handler.addFilter(only_others)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(only_others)


def reachable(url: str) -> bool:
    """Return whether a host accepts a connection within 5 seconds; always True behind a proxy."""
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
    """Return the error for an unreachable host."""
    return OtptError(
        f"Cannot get {what}: it is not in the local cache and {urlsplit(url).hostname} cannot be reached; download the "
        f"weights on another machine and pass the file, or local-dir:FOLDER, or use {PHOTOGRAPHS}, a small model of "
        f"photographs that ships with the package (--backbone {PHOTOGRAPHS})."
    )


def summary(error: Exception) -> str:
    """Return the first 200 characters of an error message on one line."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
