"""``load_backbone``: from a spec to a ``Backbone``.

Forms of a spec:

    ViT-B-16/openai            an open_clip architecture and the tag of its weights
    hf-hub:ORG/NAME            an open_clip model on the Hugging Face hub
    local-dir:FOLDER           a folder with open_clip_config.json and weights (or just the folder's path)
    FILE.pt|.pth|.bin|.safetensors   OpenAI's archive, or a state dict of open_clip
    hf:ORG/NAME                a CLIPModel of transformers on the hub (or the path of such a folder)
    medclip:FOLDER             MedCLIP-ViT as published
    pocket                     the small model that ships with the package (a folder of that name: ./pocket)
    random:ARCHITECTURE        fixed random weights, for benchmarks and tests

or a model in memory: of open_clip with tokenizer and transform, a CLIPModel or SiglipModel of transformers with its
processor.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from otpt.backbones.backbone import Backbone
from otpt.backbones.checkpoints import SUFFIXES, read_checkpoint
from otpt.backbones.devices import check_precision, pick_device
from otpt.backbones.pocket import load_pocket_state
from otpt.backbones.pocket.model import build_pocket
from otpt.backbones.preprocessing import preprocessing_from_config
from otpt.backbones.sources.architectures import Config, build_model, choose_gelu, infer_config, named_config
from otpt.backbones.sources.catalogue import split_name_and_tag
from otpt.backbones.sources.clip_tokenizer import clip_tokenizer
from otpt.backbones.sources.hub import hub, hub_file, hub_tokenizer, hub_weights, no_remote_code, pretrained_file
from otpt.backbones.sources.huggingface import (
    download_huggingface_clip,
    huggingface_config,
    huggingface_preprocessing,
    huggingface_tokenizer,
    huggingface_weights,
    is_huggingface_clip,
)
from otpt.backbones.sources.medclip import load_medclip
from otpt.backbones.sources.objects import Parts, object_parts
from otpt.backbones.sources.untrusted import check_config
from otpt.backbones.sources.weights import load_weights
from otpt.backbones.tuned.compiling import check_compile
from otpt.errors import OtptError
from otpt.files import parse_json

_CONFIG_FILE = "open_clip_config.json"


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
    """Load a model (forms of ``spec``: see the module's docstring).

    Args:
        spec: what to load.
        device: "auto" (CUDA, then MPS, then CPU), "cpu", "cuda", "cuda:1", "mps".
        precision: "float32"; "bf16" or "fp16" (autocast around the image tower); "bf16-both" or "fp16-both" (around the
            text tower too); "float64" for checks.
        compile: ``torch.compile`` the image tower now, for chunks of its fixed size; on CUDA with CUDA graphs. Needs a
            C++ compiler, on CUDA also Triton. Features differ in rounding.
        architecture: open_clip name of the architecture of a checkpoint file; inferred if not given.
        quick_gelu: insist on QuickGELU (True) or GELU (False); by default what the weights were trained with.
        tokenizer: of a model in memory: what ``open_clip.get_tokenizer`` gives, or the tokenizer of transformers.
        preprocess: of a model in memory: the transform that open_clip makes for evaluation, or the image processor
            or processor of transformers.

    Weights are kept in float32, OpenAI's float16-rounded ones too. A model in memory is copied and stays as it is;
    with the device "auto" the copy is where the model is.
    """
    in_memory = not isinstance(spec, (str, Path))
    if in_memory and device == "auto":
        device = _device_of(spec)
    place = pick_device(device)
    check_precision(precision, place)
    if compile:
        check_compile(place)
    if in_memory:
        _refuse("of files", architecture=architecture, quick_gelu=quick_gelu)
        loaded = object_parts(spec, tokenizer, preprocess)
        spec = loaded.architecture
    else:
        _refuse("of models in memory", tokenizer=tokenizer, preprocess=preprocess)
        spec = str(spec).strip()
        loaded = _load(spec, architecture, quick_gelu)
    return Backbone(
        loaded.model,
        loaded.tokenizer,
        preprocessing_from_config(loaded.preprocess, loaded.model.visual.image_size),
        name=spec,
        architecture=loaded.architecture,
        device=place,
        precision=precision,
        compiled=bool(compile),
    )


def _device_of(model: Any) -> str:
    """Where a model in memory is; "auto" for what has no parameters, which is refused later."""
    parameters = getattr(model, "parameters", None)
    first = next(iter(parameters()), None) if callable(parameters) else None
    return "auto" if first is None else str(first.device).removesuffix(":0")


def _refuse(what: str, **given: Any) -> None:
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise OtptError(f"{named[0]}= is an option {what} only; leave it out.")


def _load(spec: str, architecture: str | None, quick_gelu: bool | None) -> Parts:
    before, colon, rest = spec.partition(":")
    form = before if colon else ""
    path = Path(os.path.expanduser(rest if form == "local-dir" else spec))
    is_file = path.suffix in SUFFIXES and form != "medclip"
    if architecture is not None and not is_file:
        raise OtptError(
            f"architecture={architecture!r} is for checkpoint files ({', '.join(SUFFIXES)}); "
            f"{spec!r} says its architecture itself."
        )
    if not rest and form in {"random", "hf-hub", "hf", "local-dir", "medclip"}:
        raise OtptError(f"A name is missing after {spec!r}.")
    if form == "random":
        return _random(rest, quick_gelu)
    if form == "hf-hub":
        return _from_hub(rest, quick_gelu)
    if form == "hf" and os.path.isdir(local := Path(os.path.expanduser(rest))):
        return _folder(local, quick_gelu)
    if form == "hf":
        return _huggingface(download_huggingface_clip(rest), rest, quick_gelu)
    if form == "medclip":
        return Parts(*load_medclip(rest))
    if form == "local-dir":
        return _local_dir(path, quick_gelu)
    if is_file:
        return _checkpoint_file(path, architecture, quick_gelu)
    if spec == "pocket":
        return _pocket(quick_gelu)
    if os.path.isdir(path):
        return _folder(path, quick_gelu)
    return _named(spec, quick_gelu)


def _named(spec: str, quick_gelu: bool | None) -> Parts:
    name, pretrained = split_name_and_tag(spec)
    config = named_config(name)
    # one of open_clip's tags does not repeat what its architecture already says
    needed = bool(pretrained.get("quick_gelu", False) or config.get("quick_gelu", False))
    state = read_checkpoint(pretrained_file(pretrained, spec)).state
    model = _build(config, choose_gelu(quick_gelu, needed, None, spec), name)
    load_weights(model, state, source=spec, architecture=name, resize=True)
    return Parts(model, _tokenizer(config, name), pretrained, name)


def _random(name: str, quick_gelu: bool | None) -> Parts:
    config = named_config(name)
    quick = choose_gelu(quick_gelu, None, bool(config.get("quick_gelu", False)), name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _build(config, quick, name)
    return Parts(model, _tokenizer(config, name), {}, name)


def _from_hub(repository: str, quick_gelu: bool | None) -> Parts:
    source = f"hf-hub:{repository}"
    whole = _read_config(hub_file(repository, _CONFIG_FILE, what=source))
    return _configured(whole, hub_weights(repository, source), source, None, quick_gelu)


def _local_dir(folder: Path, quick_gelu: bool | None) -> Parts:
    if not os.path.isdir(folder):
        raise OtptError(f"There is no folder {folder}.")
    if not os.path.isfile(folder / _CONFIG_FILE):
        raise OtptError(f"The folder {folder} has no {_CONFIG_FILE}, which describes an open_clip model.")
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    files.sort(key=lambda path: (not path.name.startswith("open_clip"), path.suffix != ".safetensors"))
    if not files:
        raise OtptError(f"The folder {folder} has no weights; expected a file {', '.join(SUFFIXES)}.")
    return _configured(_read_config(folder / _CONFIG_FILE), files[0], str(folder), folder, quick_gelu)


def _configured(
    whole: dict[str, Any], weights: Path, source: str, folder: Path | None, quick_gelu: bool | None
) -> Parts:
    """A model with a configuration beside its weights."""
    config: Config = whole["model_cfg"]
    state = read_checkpoint(weights).state
    check_config(config, state, source)
    model = _build(config, choose_gelu(quick_gelu, bool(config.get("quick_gelu", False)), None, source), source)
    load_weights(model, state, source=source, architecture=f"of its own {_CONFIG_FILE}", resize=True)
    name = source.rstrip("/").rsplit("/", 1)[-1]
    return Parts(model, _tokenizer(config, name, folder), whole.get("preprocess_cfg") or {}, name)


def _pocket(quick_gelu: bool | None) -> Parts:
    whole, state = load_pocket_state()
    config: Config = whole["model_cfg"]
    model = build_pocket(config, state, quick_gelu=choose_gelu(quick_gelu, False, None, "pocket"))
    return Parts(model, clip_tokenizer(model.context_length), whole.get("preprocess_cfg") or {}, "pocket")


def _checkpoint_file(path: Path, architecture: str | None, quick_gelu: bool | None) -> Parts:
    checkpoint = read_checkpoint(path)
    needed = True if checkpoint.openai else None
    if architecture is None:
        name, config = infer_config(checkpoint.state, str(path))
        check_config(config, checkpoint.state, str(path))
        named = None
    else:
        name, config = architecture, named_config(architecture)
        named = bool(config.get("quick_gelu", False))
    model = _build(config, choose_gelu(quick_gelu, needed, named, str(path)), name)
    remedy = "name the right one with architecture=…"
    load_weights(model, checkpoint.state, source=str(path), architecture=name, remedy=remedy)
    return Parts(model, _tokenizer(config, name), {}, name)


def _folder(folder: Path, quick_gelu: bool | None) -> Parts:
    if os.path.isfile(folder / _CONFIG_FILE):
        return _local_dir(folder, quick_gelu)
    if is_huggingface_clip(folder):
        return _huggingface(folder, str(folder), quick_gelu)
    raise OtptError(
        f"The folder {folder} is not a model; expected {_CONFIG_FILE} (open_clip) or a config.json of model type "
        f"'clip' (Hugging Face)."
    )


def _huggingface(folder: Path, source: str, quick_gelu: bool | None) -> Parts:
    config, state = huggingface_config(folder), huggingface_weights(folder)
    check_config(config, state, source)
    model = _build(config, choose_gelu(quick_gelu, config["quick_gelu"], None, source), source)
    load_weights(model, state, source=source, architecture="of its own config.json")
    tokenizer = huggingface_tokenizer(folder, config["text_cfg"]["context_length"])
    name = source.rstrip("/").rsplit("/", 1)[-1]
    return Parts(model, tokenizer, huggingface_preprocessing(folder), name)


def _build(config: Config, quick_gelu: bool, name: str) -> Any:
    if not config["text_cfg"].get("hf_model_name"):
        return build_model(config, quick_gelu)
    with hub(f"the text tower of {name}"), no_remote_code():
        try:
            return build_model(config, quick_gelu)
        except OtptError as error:
            if isinstance(error.__cause__, OSError):  # no fault of the configuration: its files cannot be had
                raise error.__cause__ from None
            raise


def _tokenizer(config: Config, name: str, folder: Path | None = None) -> Any:
    text = config["text_cfg"]
    length = text.get("context_length", 77)
    options = text.get("tokenizer_kwargs") or {}
    repository = text.get("hf_tokenizer_name")
    if not repository:
        try:
            return clip_tokenizer(length, **options)
        except Exception as error:  # options of somebody's configuration
            raise OtptError(f"The tokenizer of {name} does not take {options!r}; check tokenizer_kwargs.") from error
    mode = text.get("tokenizer_mode")
    return hub_tokenizer(
        str(folder or repository), length, what=f"the tokenizer of {name}", tokenizer_mode=mode, **options
    )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        whole = parse_json(path.read_text(encoding="utf-8"))
        model = whole["model_cfg"]
        complete = all(isinstance(model[part], dict) for part in ("vision_cfg", "text_cfg")) and "embed_dim" in model
        complete = complete and isinstance(whole.get("preprocess_cfg") or {}, dict)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OtptError(f"The file {path} is not a model configuration of open_clip (model_cfg, …).") from error
    if not complete:
        raise OtptError(
            f"The file {path} does not describe a model: embed_dim, the objects vision_cfg and text_cfg, and as "
            "preprocess_cfg, if it is there, an object are expected."
        )
    return dict(whole)
