"""Files from the Hugging Face hub or a URL; an immediate error if there is no connection."""

from __future__ import annotations

import logging
import os
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from otpt.errors import OtptError

_PROBE_SECONDS = 5.0
_WEIGHT_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")


@contextmanager
def hub(what: str) -> Iterator[None]:
    """Within this block the hub is either reachable or known to be not; failures become one ``OtptError``.

    huggingface_hub tries an unreachable host five times (half a minute); so the connection is probed first, and if
    there is none, only the cache is used.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not reachable(constants.ENDPOINT)
    quiet = logging.getLogger("huggingface_hub")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        yield
    except OtptError:
        raise
    except Exception as error:
        raise _no_way(what, constants.ENDPOINT, None if constants.HF_HUB_OFFLINE else error) from error
    finally:
        constants.HF_HUB_OFFLINE = before
        quiet.setLevel(level)


@contextmanager
def no_remote_code() -> Iterator[None]:
    """Within this block, transformers refuses a repository that wants to run code of its own, instead of asking."""
    try:
        from transformers import dynamic_module_utils
    except ImportError:  # reported where it is needed
        yield
        return
    before = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = before


def hub_file(repository: str, *names: str, what: str) -> Path:
    """The first of ``names`` that exists in the repository, from the cache or downloaded; ``what`` is for errors."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with hub(what):
        for name in names[:-1]:
            try:
                return Path(hf_hub_download(repository, name))
            except EntryNotFoundError:
                continue
            except Exception:
                if not constants.HF_HUB_OFFLINE:
                    raise
        return Path(hf_hub_download(repository, names[-1]))


def hub_weights(repository: str, what: str) -> Path:
    """The weights file of an open_clip repository on the hub, safetensors preferred."""
    return hub_file(repository, *_WEIGHT_FILES, what=what)


def hub_tokenizer(source: str, context_length: int, *, what: str, **options: Any) -> Any:
    """A tokenizer of transformers from the hub or a folder, as open_clip wraps it; none of its own code is run."""
    from open_clip.tokenizer import HFTokenizer

    with hub(what):
        try:
            return HFTokenizer(source, context_length=context_length, trust_remote_code=False, **options)
        except ImportError as error:
            raise OtptError(f"Cannot read {what}: it needs transformers: pip install 'otpt[hf]'.") from error
        except Exception as error:
            if not os.path.isdir(source):
                raise
            raise OtptError(
                f"Cannot read {what}: {_in_short(error)}; expected the files that transformers' save_pretrained writes."
            ) from error


def pretrained_file(pretrained: Mapping[str, Any], what: str) -> Path:
    """The weights of one of open_clip's tags: on the hub, or at a web address."""
    location = pretrained.get("hf_hub")
    if location:
        repository, name = os.path.split(location)
        if not name:
            return hub_weights(repository, what)
        stem, suffix = os.path.splitext(name)
        safe = (f"{stem}.safetensors",) if suffix in {".bin", ".pth"} else ()
        return hub_file(repository, *safe, name, what=what)
    from open_clip.pretrained import download_pretrained_from_url

    url = pretrained["url"]
    cached = Path.home() / ".cache" / "clip" / os.path.basename(url)
    if not cached.is_file() and not reachable(url):
        raise _no_way(what, url)
    try:
        return Path(download_pretrained_from_url(url))
    except (OSError, RuntimeError) as error:
        raise _no_way(what, url, error) from error


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


def _no_way(what: str, url: str, error: Exception | None = None) -> OtptError:
    """``error``: what a host that can be reached answered."""
    host = urlsplit(url).hostname
    reason = f"{host} cannot be reached and it is not in the local cache"
    if error is not None:
        reason = f"{host} answered: {_in_short(error)}"
    return OtptError(
        f"Cannot get {what}: {reason}. Download its weights elsewhere and give the file's path, "
        f"or local-dir:FOLDER, instead."
    )


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
