"""Sources of models: their registry, the parts that they return, and downloads."""

from __future__ import annotations

import logging
import socket
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from otpt.errors import OtptError

_PROBE_SECONDS = 5.0


class Parts(NamedTuple):
    """What a backbone is made of."""

    model: Any  # with open_clip's interface, see ClipBackbone
    tokenizer: Any
    preprocess: Any  # see read_preprocessing
    architecture: str


class Source(NamedTuple):
    """A way to load models."""

    form: str  # how it is written: "hf:ORG/NAME"
    description: str
    load: Callable[[str, bool | None], Parts]


SOURCES: dict[str, Source] = {}
"""By prefix: "hf" for specs such as "hf:ORG/NAME"; by the whole spec for forms without a colon."""


def register_source(form: str, description: str, load: Callable[[str, bool | None], Parts]) -> None:
    """Register a form of naming a model, such as ``hf:ORG/NAME``; ``otpt models`` lists it.

    Args:
        form: prefix, colon and what follows; or a name on its own.
        description: one line for the list of models.
        load: from what follows the colon, and the user's choice of ``quick_gelu``, to the parts of a backbone.
    """
    SOURCES[form.partition(":")[0]] = Source(form, description, load)


class QuickGeluWarning(UserWarning):
    """The activation of a model may not be the one its weights were trained with."""


def choose_gelu(asked: bool | None, needed: bool | None, named: bool | None, source: str) -> bool:
    """Whether to build QuickGELU, x·σ(1.702x), instead of GELU.

    ``asked`` is the user's choice and takes precedence; ``needed`` is the activation of the training, if known;
    ``named`` belongs to a named architecture. Warn about contradictions and an unknown activation.
    """
    words = {True: "QuickGELU", False: "GELU"}
    chosen = next((each for each in (asked, needed, named) if each is not None), False)
    warning = None
    if asked is needed is named is None:
        warning = (
            f"The weights of {source} do not show whether they were trained with GELU or QuickGELU; GELU is used. Pass "
            "quick_gelu=True or False to choose."
        )
    elif needed is not None and chosen != needed:
        warning = (
            f"{source} was trained with {words[needed]}, but runs with {words[chosen]} as requested: its predictions "
            "will be off."
        )
    elif asked is None and needed is not None and named is not None and named != needed:
        warning = (
            f"The architecture named for {source} has {words[named]}, but the weights were trained with "
            f"{words[needed]}, which is used; pass quick_gelu={named} to insist."
        )
    if warning:
        warnings.warn(warning, QuickGeluWarning, stacklevel=5)  # the caller of load_backbone
    return chosen


@contextmanager
def hub(what: str, *, local: bool = False) -> Iterator[None]:
    """Turn failures of the libraries that load models into one ``OtptError`` about ``what``; suppress their log.

    huggingface_hub retries an unreachable host for half a minute, so the connection is probed first, except for
    ``local`` models; without one, only the cache is used.
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
    """Suppress transformers' progress bar and its table of tensors that do not fit."""
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
    """Return the first of ``names`` in the repository, cached or downloaded; ``what`` is for errors."""
    from huggingface_hub import hf_hub_download

    with hub(what):
        for name in names[:-1]:
            with suppress(Exception):
                return Path(hf_hub_download(repository, name))
        return Path(hf_hub_download(repository, names[-1]))


def reachable(url: str) -> bool:
    """Whether the host accepts a connection within a few seconds; always True behind a proxy."""
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
        f"Cannot get {what}: {urlsplit(url).hostname} cannot be reached and it is not in the local cache. Download its "
        "weights elsewhere and give the file's path, or local-dir:FOLDER, instead."
    )


def in_short(error: Exception) -> str:
    """The first 200 characters of a message, in one line."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
