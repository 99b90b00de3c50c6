"""Loading of backbones.

Forms of a model spec:

    ViT-B-16/openai            an open_clip architecture and the tag of its weights
    hf-hub:ORG/NAME            an open_clip model on the Hugging Face hub
    local-dir:FOLDER           a folder with open_clip_config.json and weights (or just the folder's path)
    FILE.pt|.pth|.bin|.safetensors   OpenAI's archive, or a state dict of open_clip
    hf:ORG/NAME                a dual encoder of transformers on the hub (or the path of its folder)
    pocket                     a small model of emoji that ships with the package (a folder of that name: ./pocket)
    pocket-photo               a small model of photographs that ships with the package
    random:ARCHITECTURE        fixed random weights, for benchmarks and tests

Plugins register further forms with :func:`otpt.backbones.register_source`. A model in memory is accepted too: an
open_clip model with tokenizer and transform, or a dual encoder of transformers with its processor.
"""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import torch
from torch import nn

from otpt.arguments import checked
from otpt.backbones.backbone import ClipBackbone
from otpt.backbones.checkpoints import SUFFIXES
from otpt.backbones.devices import check_precision, pick_device
from otpt.backbones.dual_encoders import is_dual_encoder
from otpt.backbones.hf_tokenizers import prepare_tokenizer
from otpt.backbones.known_models import TRANSFORMERS, ModelEntry, open_clip_entry
from otpt.backbones.modules import ClipModule, Tokenizer
from otpt.backbones.open_clip_models import (
    CONFIG_FILE,
    load_file,
    load_folder,
    load_hub,
    load_named,
    load_random,
    open_clip_tags,
)
from otpt.backbones.pocket import load_pocket
from otpt.backbones.pocket_photo import load_pocket_photo
from otpt.backbones.preprocessing import read_preprocessing
from otpt.backbones.protocols import is_backbone
from otpt.backbones.sources import SOURCES, Parts, register_source
from otpt.backbones.transformers_models import load_transformers, transformers_parts
from otpt.errors import OtptError
from otpt.plugins import is_registered, load_installed_plugins

_FILES = f"FILE{', '.join(SUFFIXES)}"


@checked
def load_backbone(
    spec: object,
    *,
    device: str | torch.device = "auto",
    precision: str = "float32",
    compile: bool = False,
    architecture: str | None = None,
    quick_gelu: bool | None = None,
    tokenizer: Tokenizer | None = None,
    preprocess: object = None,
) -> ClipBackbone:
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
        device = str(next((parameter.device for parameter in spec.parameters()), device)).removesuffix(":0")
    place = pick_device(device)
    check_precision(precision, place)
    if compile and place.type not in {"cpu", "cuda"}:
        raise OtptError(f"compile is not supported on {place.type!r}; use 'cpu' or 'cuda', or omit compile.")
    with torch.random.fork_rng(devices=[]):  # constructors of modules draw initial weights
        if in_memory:
            parts = _from_memory(spec, tokenizer, preprocess)
        else:
            parts = _from_spec(str(spec).strip(), architecture, quick_gelu)
    return ClipBackbone(
        parts.model,
        parts.tokenizer,
        read_preprocessing(parts.preprocess, getattr(parts.model.get_submodule("visual"), "image_size", 0)),
        name=parts.architecture if in_memory else str(spec).strip(),
        architecture=parts.architecture,
        device=place,
        precision=precision,
        compiled=bool(compile),
    )


def _from_spec(spec: str, architecture: str | None, quick_gelu: bool | None) -> Parts:
    prefix, colon, rest = spec.partition(":")
    path = Path(os.path.expanduser(spec))
    if (colon or "/" not in spec) and not os.path.exists(path):
        is_registered(prefix, SOURCES, "models")
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
    if os.path.isdir(path):
        return _folder(str(path), quick_gelu)
    return load_named(spec, quick_gelu)


def _folder(folder: str, quick_gelu: bool | None) -> Parts:
    path = Path(os.path.expanduser(folder))
    if (path / CONFIG_FILE).is_file():
        return load_folder(folder, quick_gelu)
    if (path / "config.json").is_file():
        return load_transformers(folder, quick_gelu)
    raise OtptError(
        f"The folder {folder} is not a model; expected {CONFIG_FILE} (open_clip) or the config.json of a dual encoder "
        "of transformers (Hugging Face)."
    )


def _hugging_face(name: str, quick_gelu: bool | None) -> Parts:
    is_folder = os.path.isdir(os.path.expanduser(name))
    return _folder(name, quick_gelu) if is_folder else load_transformers(name, quick_gelu)


def _pocket(name: str, quick_gelu: bool | None) -> Parts:
    return load_pocket(quick_gelu)


def _pocket_photo(name: str, quick_gelu: bool | None) -> Parts:
    return load_pocket_photo(quick_gelu)


register_source("hf-hub:ORG/NAME", "an open_clip model on the Hugging Face hub", load_hub)
register_source("local-dir:FOLDER", f"a folder with {CONFIG_FILE} and weights; its path also works", load_folder)
register_source(
    "hf:ORG/NAME",
    "a dual encoder of transformers (CLIP, SigLIP 2, MetaCLIP 2 …), or the path of its folder",
    _hugging_face,
)
register_source("random:ARCHITECTURE", "fixed random weights, for benchmarks and tests", load_random)
register_source("pocket", "a small CLIP of emoji that ships with the package: no download", _pocket)
register_source("pocket-photo", "a small CLIP of photographs that ships with the package: no download", _pocket_photo)


def _from_memory(model: object, tokenizer: Tokenizer | None, preprocess: object) -> Parts:
    """Return the parts of a backbone, with a copy of a model in memory."""
    for processor in (tokenizer, preprocess):  # a processor of transformers contains both
        if hasattr(processor, "image_processor") and hasattr(processor, "tokenizer"):
            tokenizer = processor.tokenizer if tokenizer in (None, processor) else tokenizer
            preprocess = processor.image_processor if preprocess in (None, processor) else preprocess
    model = _unwrapped(model)
    kind = type(model).__name__
    if is_backbone(model):
        raise OtptError(f"The {kind} is a backbone already; pass it to otpt.Classifier.")
    from_transformers = is_dual_encoder(model) and hasattr(model, "config")
    if not isinstance(model, nn.Module) or not (from_transformers or isinstance(model, ClipModule)):
        raise OtptError(
            f"The model is a {type(model).__module__}.{kind}; expected a name or file, a model of open_clip (visual, "
            "encode_text, logit_scale), or a dual encoder of transformers (get_text_features, get_image_features), "
            "such as a CLIPModel or SiglipModel."
        )
    if tokenizer is None or preprocess is None:
        missing = "tokenizer" if tokenizer is None else "preprocess"
        raise OtptError(
            f"The {missing} of the {kind} is missing; pass tokenizer= and preprocess=, or, for a model of "
            "transformers, preprocess=AutoProcessor.from_pretrained(…)."
        )
    if from_transformers:
        return transformers_parts(model, tokenizer, preprocess, getattr(model.config, "name_or_path", "") or kind)
    return Parts(deepcopy(model), cast(Tokenizer, prepare_tokenizer(tokenizer, None)), preprocess, kind)


@runtime_checkable
class _Adapted(Protocol):
    """Model with adapters of PEFT."""

    peft_config: object

    def merge_and_unload(self) -> object:
        """Return the model with merged adapters; changes it."""


def _unwrapped(model: object) -> object:
    """Return the model in wrappers of torch (compile, DataParallel) and PEFT, whose adapters are merged in a copy."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(model, nn.Module) and "_orig_mod" in dict(model.named_children()):
            model = model.get_submodule("_orig_mod")
        elif isinstance(model, _Adapted):
            return deepcopy(model).merge_and_unload()
        else:
            return model


def list_models() -> list[ModelEntry]:
    """Return the model specs of ``load_backbone``: general forms, types of transformers, names of open_clip."""
    load_installed_plugins("models")
    forms = [
        ModelEntry("NAME/TAG", "an open_clip architecture and the tag of its weights, e.g. ViT-B-16/openai; see below"),
        ModelEntry(_FILES, "OpenAI's archive or an open_clip state dict, read without running code"),
        *(ModelEntry(source.form, source.description) for source in SOURCES.values()),
    ]
    kinds = [entry._replace(name=f"hf: {entry.name}") for entry in TRANSFORMERS]
    return [*forms, *kinds, *map(open_clip_entry, open_clip_tags())]
