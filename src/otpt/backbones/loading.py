"""``load_backbone``: from a spec to a :class:`Backbone`.

Forms of a spec:

    ViT-B-16/openai            an open_clip architecture and the tag of its weights
    hf-hub:ORG/NAME            an open_clip model on the Hugging Face hub
    local-dir:FOLDER           a folder with open_clip_config.json and weights (or just the folder's path)
    FILE.pt|.pth|.bin|.safetensors   OpenAI's archive, or a state dict of open_clip
    hf:ORG/NAME                a CLIPModel or SiglipModel of transformers on the hub (or the path of its folder)
    pocket                     the small model that ships with the package (a folder of that name: ./pocket)
    random:ARCHITECTURE        fixed random weights, for benchmarks and tests

further forms that plugins register (:func:`otpt.backbones.register_source`), or a model in memory: of open_clip with
tokenizer and transform, or a CLIPModel or SiglipModel of transformers with its processor.
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
    """Load a model.

    Args:
        spec: a name, file, folder or model in memory; see the forms in :mod:`otpt.backbones.loading`.
        device: "auto" (CUDA, then MPS, then CPU), "cpu", "cuda", "cuda:1", "mps".
        precision: "float32"; "bf16" or "fp16" (autocast around the image tower); "bf16-both" or "fp16-both" (around the
            text tower too); "float64" for checks.
        compile: ``torch.compile`` the image tower now, for chunks of its fixed size. Needs a C++ compiler, on CUDA also
            Triton. Features differ in rounding.
        architecture: open_clip name of the architecture of a checkpoint file; inferred by default.
        quick_gelu: insist on QuickGELU (True) or GELU (False); by default what the weights were trained with.
        tokenizer: of a model in memory: any function of texts that returns token ids, such as a tokenizer of open_clip
            or transformers.
        preprocess: of a model in memory: :class:`Preprocessing`, the transform that open_clip makes for evaluation, or
            the processor of transformers.

    Weights are stored in float32, OpenAI's float16-rounded ones too. A model in memory is copied and stays unchanged;
    with the device "auto" the copy is where the model is.

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
            raise OtptError(f"{name}= is an option of {kind} only; leave it out.")
    if isinstance(spec, nn.Module) and device == "auto":
        device = str(next((each.device for each in spec.parameters()), device)).removesuffix(":0")
    place = pick_device(device)
    check_precision(precision, place)
    if compile and place.type not in {"cpu", "cuda"}:
        raise OtptError(f"Image towers are compiled on 'cpu' and 'cuda', not on {place.type!r}; leave compile out.")
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
        raise OtptError(f"architecture={architecture!r} is for checkpoint files ({', '.join(SUFFIXES)}) only.")
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
    from otpt.backbones.pocket import load_pocket  # imports open_clip and timm, which takes seconds

    return load_pocket(quick_gelu)


register_source("hf-hub:ORG/NAME", "an open_clip model on the Hugging Face hub", load_hub)
register_source("local-dir:FOLDER", f"a folder with {CONFIG_FILE} and weights; its path also works", load_folder)
register_source("hf:ORG/NAME", "a CLIPModel or SiglipModel of transformers, or the path of its folder", _hugging_face)
register_source("random:ARCHITECTURE", "fixed random weights, for benchmarks and tests", load_random)
register_source("pocket", "a small CLIP that ships with the package: no download", _pocket)


def _from_memory(model: Any, tokenizer: Any, preprocess: Any) -> Parts:
    """Parts of a backbone from a model in memory, which is copied."""
    for given in (tokenizer, preprocess):  # a processor of transformers holds both
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
                f"The {kind} came without its {name}; give tokenizer= and preprocess= (in transformers: "
                "preprocess=AutoProcessor.from_pretrained(…) has both)."
            )
    if transformers:
        return transformers_parts(model, tokenizer, preprocess, model.config.name_or_path or kind)
    return Parts(deepcopy(model), tokenizer, preprocess, kind)


class ModelEntry(NamedTuple):
    """One line of ``otpt models``."""

    name: str
    description: str


def list_models() -> list[ModelEntry]:
    """What ``load_backbone`` takes: the forms first, then open_clip's names with their tags."""
    forms = [
        ModelEntry("NAME/TAG", "an open_clip architecture and the tag of its weights, e.g. ViT-B-16/openai; see below"),
        ModelEntry(_FILES, "OpenAI's archive or an open_clip state dict, read without running code"),
        *(ModelEntry(source.form, source.description) for source in SOURCES.values()),
    ]
    return [*forms, *(ModelEntry(name, "tags: " + ", ".join(tags)) for name, tags in open_clip_tags().items())]
