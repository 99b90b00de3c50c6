"""CLIP's byte-pair tokenizer: open_clip's, without the rest of open_clip.

Its file needs only ftfy and regex, while importing the package brings torchvision, timm and transformers and costs
seconds. So the file is loaded on its own, unless open_clip has been imported anyway.
"""

from __future__ import annotations

import copyreg
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_PRIVATE_NAME = "otpt.backbones._open_clip_tokenizer"
_OPTIONS = "otpt_options"
"""Attribute of a tokenizer: what it was made with, for a pickle of it."""


def clip_tokenizer(context_length: int = 77, **options: Any) -> Any:
    """An open_clip ``SimpleTokenizer``; ``options`` are those of its constructor."""
    module = _tokenizer_module()
    ready = getattr(module, "_tokenizer", None)
    if options or type(ready) is not module.SimpleTokenizer:
        made = module.SimpleTokenizer(context_length=context_length, **options)
        setattr(made, _OPTIONS, options)
        return made
    # the module has made one: reading the vocabulary twice would double the time
    tokenizer: Any = object.__new__(module.SimpleTokenizer)
    vars(tokenizer).update({**vars(ready), "context_length": context_length})
    return tokenizer


def _tokenizer_module() -> Any:
    loaded = sys.modules.get("open_clip.tokenizer") or _load_alone()
    if loaded is not None:
        return loaded
    import open_clip.tokenizer

    return open_clip.tokenizer


@cache
def _load_alone() -> ModuleType | None:
    """open_clip/tokenizer.py as a module of its own; ``None`` if this open_clip's file needs its package."""
    package = importlib.util.find_spec("open_clip")  # finds it, imports nothing
    for folder in (package and package.submodule_search_locations) or ():
        spec = importlib.util.spec_from_file_location(_PRIVATE_NAME, Path(folder) / "tokenizer.py")
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (ImportError, OSError):
            continue
        if hasattr(module, "SimpleTokenizer"):
            copyreg.pickle(module.SimpleTokenizer, _reduced)  # pickle could not import the module by its name
            return module
    return None


def _reduced(tokenizer: Any) -> tuple[Any, ...]:
    return _restored, (tokenizer.context_length, getattr(tokenizer, _OPTIONS, {}))


def _restored(context_length: int, options: dict[str, Any]) -> Any:
    return clip_tokenizer(context_length, **options)
