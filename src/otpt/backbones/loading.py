"""Loading of backbones.

Forms of a model spec:

    ViT-B-16/openai            an open_clip architecture and the tag of its weights
    hf-hub:ORG/NAME            an open_clip model on the Hugging Face hub
    local-dir:FOLDER           a folder with open_clip_config.json and weights (or just the folder's path)
    FILE.pt|.pth|.bin|.safetensors   OpenAI's archive, or a state dict of open_clip
    hf:ORG/NAME                a CLIPModel or SiglipModel of transformers on the hub (or the path of its folder)
    pocket                     the small model that ships with the package (a folder of that name: ./pocket)
    random:ARCHITECTURE        fixed random weights, for benchmarks and tests

Plugins register further forms with :func:`otpt.backbones.register_source`. A model in memory is accepted too: an
open_clip model with tokenizer and transform, or a CLIPModel or SiglipModel of transformers with its processor.
"""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from otpt.backbones.backbone import Backbone, ClipBackbone, check_precision, pick_device
from otpt.backbones.checkpoints import SUFFIXES
from otpt.backbones.open_clip_models import (
    CONFIG_FILE,
    load_file,
    load_folder,
    load_hub,
    load_named,
    load_random,
    open_clip_tags,
)
from otpt.backbones.preprocessing import read_preprocessing
from otpt.backbones.sources import SOURCES, Parts, register_source
from otpt.backbones.transformers_models import is_transformers, load_transformers, transformers_parts
from otpt.errors import OtptError

_FILES = f"FILE{', '.join(SUFFIXES)}"


def load_backbone(
    spec: Any,
    *,
    device: str | torch.device = "auto",
    precision: str = "float32",
    compile: bool = False,
    architecture: str | None = None,
    quick_gelu: bool | None = None,
    tokenizer: Any = None,
    preprocess: Any = None,
) -> Backbone:
    """Load a model and return its backbone.

    Weights are converted to float32. A model in memory is copied; with the device "auto" the copy is on the same
    device as the model.

    Args:
        spec: name, file, folder or model in memory; see :mod:`otpt.backbones.loading`.
        device: "auto" (CUDA, then MPS, then CPU), "cpu", "cuda", "cuda:1", "mps".
        precision: "float32"; "bf16" or "fp16" (autocast of the image tower); "bf16-both" or "fp16-both" (autocast of
            both towers); "float64" for tests.
        compile: apply ``torch.compile`` to the image tower. Requires a C++ compiler, and Triton on CUDA. Features
            differ in rounding.
        architecture: open_clip name of the architecture of a checkpoint file; inferred by default.
        quick_gelu: use QuickGELU (True) or GELU (False); by default, the activation used in training.
        tokenizer: tokenizer of a model in memory, of open_clip, transformers or any function from texts to token ids.
        preprocess: preprocessing of a model in memory: :class:`Preprocessing`, open_clip's transform for evaluation,
            or a processor of transformers.

    Example:
        >>> load_backbone("pocket", device="cpu").embed_dim
        192
    """
    in_memory = not isinstance(spec, (str, Path))
    of_files = {"architecture": architecture, "quick_gelu": quick_gelu}
    of_objects = {"tokenizer": tokenizer, "preprocess": preprocess}
    for name, value in (of_files if in_memory else of_objects).items():
        if value is not None:
            kind = "files" if in_memory else "models in memory"
            raise OtptError(f"{name}= applies only to {kind}; omit it.")
    if isinstance(spec, nn.Module) and device == "auto":
        device = str(next((each.device for each in spec.parameters()), device)).removesuffix(":0")
    place = pick_device(device)
    check_precision(precision, place)
    if compile and place.type not in {"cpu", "cuda"}:
        raise OtptError(f"compile is not supported on {place.type!r}; use 'cpu' or 'cuda', or omit compile.")
    if in_memory:
        loaded = _from_memory(spec, tokenizer, preprocess)
    else:
        loaded = _from_spec(str(spec).strip(), architecture, quick_gelu)
    return ClipBackbone(
        loaded.model,
        loaded.tokenizer,
        read_preprocessing(loaded.preprocess, getattr(loaded.model.visual, "image_size", 0)),
        name=loaded.architecture if in_memory else str(spec).strip(),
        architecture=loaded.architecture,
        device=place,
        precision=precision,
        compiled=bool(compile),
    )


def _from_spec(spec: str, architecture: str | None, quick_gelu: bool | None) -> Parts:
    prefix, colon, rest = spec.partition(":")
    path = Path(os.path.expanduser(spec))
    source = SOURCES.get(prefix)
    is_file = path.suffix in SUFFIXES and source is None
    if architecture is not None and not is_file:
        raise OtptError(f"architecture={architecture!r} applies only to checkpoint files ({', '.join(SUFFIXES)}).")
    if source is not None and bool(colon) == (":" in source.form):
        if colon and not rest:
            raise OtptError(f"A name is missing after {spec!r}; expected {source.form}.")
        return source.load(rest, quick_gelu)
    if is_file:
        return load_file(path, architecture, quick_gelu)
    if path.is_dir():
        return _folder(str(path), quick_gelu)
    return load_named(spec, quick_gelu)


def _folder(folder: str, quick_gelu: bool | None) -> Parts:
    path = Path(os.path.expanduser(folder))
    if (path / CONFIG_FILE).is_file():
        return load_folder(folder, quick_gelu)
    if (path / "config.json").is_file():
        return load_transformers(folder, quick_gelu)
    raise OtptError(
        f"The folder {folder} is not a model; expected {CONFIG_FILE} (open_clip) or the config.json of a CLIPModel or "
        "SiglipModel (Hugging Face)."
    )


def _hugging_face(name: str, quick_gelu: bool | None) -> Parts:
    is_folder = os.path.isdir(os.path.expanduser(name))
    return _folder(name, quick_gelu) if is_folder else load_transformers(name, quick_gelu)


def _pocket(name: str, quick_gelu: bool | None) -> Parts:
    from otpt.backbones.pocket import load_pocket  # slow: imports open_clip and timm

    return load_pocket(quick_gelu)


register_source("hf-hub:ORG/NAME", "an open_clip model on the Hugging Face hub", load_hub)
register_source("local-dir:FOLDER", f"a folder with {CONFIG_FILE} and weights; its path also works", load_folder)
register_source("hf:ORG/NAME", "a CLIPModel or SiglipModel of transformers, or the path of its folder", _hugging_face)
register_source("random:ARCHITECTURE", "fixed random weights, for benchmarks and tests", load_random)
register_source("pocket", "a small CLIP that ships with the package: no download", _pocket)


def _from_memory(model: Any, tokenizer: Any, preprocess: Any) -> Parts:
    """Return the parts of a backbone, with a copy of a model in memory."""
    for given in (tokenizer, preprocess):  # a processor of transformers contains both
        if hasattr(given, "image_processor") and hasattr(given, "tokenizer"):
            tokenizer = given.tokenizer if tokenizer in (None, given) else tokenizer
            preprocess = given.image_processor if preprocess in (None, given) else preprocess
    kind, transformers = type(model).__name__, is_transformers(model)
    has_parts = all(hasattr(model, each) for each in ("visual", "encode_text", "logit_scale"))
    if not transformers and not (isinstance(model, nn.Module) and has_parts):
        raise OtptError(
            f"The model is a {type(model).__module__}.{kind}; expected a name or file, a model of open_clip (visual, "
            "encode_text, logit_scale; not wrapped by torch.compile or DataParallel), or a CLIPModel or SiglipModel of "
            "transformers."
        )
    for name, value in (("tokenizer", tokenizer), ("preprocess", preprocess)):
        if value is None:
            raise OtptError(
                f"The {name} of the {kind} is missing; pass tokenizer= and preprocess=, or, for a model of "
                "transformers, preprocess=AutoProcessor.from_pretrained(…)."
            )
    if transformers:
        return transformers_parts(model, tokenizer, preprocess, model.config.name_or_path or kind)
    return Parts(deepcopy(model), tokenizer, preprocess, kind)


class ModelEntry(NamedTuple):
    """Row of ``otpt models``."""

    name: str
    description: str


def list_models() -> list[ModelEntry]:
    """Return the model specs that ``load_backbone`` accepts: general forms, then open_clip names with their tags."""
    forms = [
        ModelEntry("NAME/TAG", "an open_clip architecture and the tag of its weights, e.g. ViT-B-16/openai; see below"),
        ModelEntry(_FILES, "OpenAI's archive or an open_clip state dict, read without running code"),
        *(ModelEntry(source.form, source.description) for source in SOURCES.values()),
    ]
    return [*forms, *(ModelEntry(name, "tags: " + ", ".join(tags)) for name, tags in open_clip_tags().items())]
