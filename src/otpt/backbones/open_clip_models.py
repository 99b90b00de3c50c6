"""Loading of open_clip models by name, from the hub, a folder or a checkpoint file."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import NotRequired, TypedDict

import torch
from torch import Tensor, nn

from otpt.backbones.checkpoints import read_checkpoint
from otpt.backbones.modules import Tokenizer
from otpt.backbones.sources import EMBEDDED, Parts, choose_gelu, download, hub, reachable, summary, unreachable
from otpt.errors import OtptError

CONFIG_FILE = "open_clip_config.json"
_WEIGHTS_FILES = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "open_clip_pytorch_model.pth",
    "model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.pth",
    "model.pth",
)
"""Names of weights in a folder, in the order in which open_clip prefers them."""
_CONTEXT_LENGTH = 77


class TextConfig(TypedDict, total=False):
    """Configuration ``text_cfg`` of a text tower of open_clip; other keys are possible."""

    context_length: int
    vocab_size: int
    width: int
    heads: int
    layers: int
    hf_model_name: str
    hf_model_pretrained: bool
    hf_tokenizer_name: str
    tokenizer_kwargs: dict[str, object]
    tokenizer_mode: str
    no_causal_mask: bool
    embed_cls: bool
    ls_init_value: float


class VisionConfig(TypedDict, total=False):
    """Configuration ``vision_cfg`` of an image tower of open_clip; other keys are possible."""

    image_size: int
    patch_size: int
    width: int
    layers: int | list[int]
    timm_model_name: str
    timm_model_pretrained: bool


class ModelConfig(TypedDict):
    """Configuration ``model_cfg`` of open_clip; other keys are possible."""

    embed_dim: int
    text_cfg: TextConfig
    vision_cfg: VisionConfig
    quick_gelu: NotRequired[bool]
    custom_text: NotRequired[bool]
    multimodal_cfg: NotRequired[dict[str, object]]


class FolderConfig(TypedDict):
    """Content of ``open_clip_config.json``."""

    model_cfg: ModelConfig
    preprocess_cfg: NotRequired[dict[str, object]]


@cache
def open_clip_tags() -> dict[str, tuple[str, ...]]:
    """Return {architecture: tags of its published weights} of open_clip."""
    import open_clip

    tags: dict[str, tuple[str, ...]] = {}
    for name, tag in open_clip.list_pretrained():
        tags[name] = (*tags.get(name, ()), tag)
    return {name: of_name for name, of_name in tags.items() if _is_dual(open_clip.get_model_config(name))}


@cache
def clip_tokenizer() -> Tokenizer:
    """Return CLIP's byte-pair tokenizer: start token 49406, end token 49407, padding 0."""
    import open_clip

    tokenizer: Tokenizer = open_clip.SimpleTokenizer()
    return tokenizer


def load_named(spec: str, quick_gelu: bool | None = None) -> Parts:
    """Load an architecture with tagged weights, such as ``ViT-B-16/openai``."""
    import open_clip

    name, tag = _split(spec)
    config = named_config(name)
    pretrained: dict[str, object] = open_clip.get_pretrained_cfg(name, tag)
    # a tag of open_clip may omit the activation if its architecture defines it
    needed = bool(pretrained.get("quick_gelu", False) or config.get("quick_gelu", False))
    quick = choose_gelu(quick_gelu, needed, None, spec)
    repository, url = str(pretrained.get("hf_hub") or ""), str(pretrained.get("url") or "")
    with hub(spec, local=not repository and not _needs_hub(config)) as offline:
        weights = _hub_weights(repository, offline) if repository else _url_weights(url, spec)
        model = _build(config, quick, offline)
        open_clip.load_checkpoint(model, str(weights))
        return Parts(_finite(model, spec), _tokenizer(config, offline), _without_none(pretrained), name)


def load_random(name: str, quick_gelu: bool | None = None) -> Parts:
    """Create an architecture with fixed random weights."""
    config = named_config(name)
    quick = choose_gelu(quick_gelu, None, bool(config.get("quick_gelu", False)), name)
    with hub(f"the text tower of {name}", local=not _needs_hub(config)) as offline:
        torch.default_generator.manual_seed(0)  # load_backbone restores its state
        return Parts(_finite(_build(config, quick, offline), name), _tokenizer(config, offline), {}, name)


def load_hub(repository: str, quick_gelu: bool | None = None) -> Parts:
    """Load an open_clip model from the Hugging Face hub."""
    import open_clip

    spec = f"hf-hub:{repository}"
    with hub(spec) as offline:
        folder_config = _read_config(download(repository, CONFIG_FILE, offline=offline))
        config = folder_config["model_cfg"]
        quick = choose_gelu(quick_gelu, bool(config.get("quick_gelu", False)), None, spec)
        weights = _hub_weights(f"{repository}/", offline)
        model = _build(config, quick, offline)
        open_clip.load_checkpoint(model, str(weights))
        preprocess = _without_none(folder_config.get("preprocess_cfg") or {})
        name = repository.rstrip("/").rsplit("/", 1)[-1]
        return Parts(_finite(model, spec), _tokenizer(config, offline), preprocess, name)


def load_folder(folder: str, quick_gelu: bool | None = None) -> Parts:
    """Load a folder with ``open_clip_config.json`` and weights."""
    import open_clip

    path = Path(os.path.expanduser(folder))
    if not path.is_dir():
        raise OtptError(f"There is no folder {path}; check the path.")
    if not (path / CONFIG_FILE).is_file():
        if (path / "config.json").is_file():
            raise OtptError(f"The folder {path} is one of Hugging Face; write hf:{folder}.")
        raise OtptError(f"The folder {path} has no {CONFIG_FILE}; expected the folder of an open_clip model.")
    folder_config = _read_config(path / CONFIG_FILE)
    config = folder_config["model_cfg"]
    _check_size(config, path)
    quick = choose_gelu(quick_gelu, bool(config.get("quick_gelu", False)), None, str(path))
    weights = _folder_weights(path)
    with hub(f"the model in {path}", local=not _needs_hub(config, folder=path)) as offline:
        model = _build(config, quick, offline)
        open_clip.load_checkpoint(model, str(weights))
        preprocess = _without_none(folder_config.get("preprocess_cfg") or {})
        tokenizer = _tokenizer(config, offline, folder=path)
        return Parts(_finite(model, str(path)), tokenizer, preprocess, path.name or str(path))


def load_file(path: Path, architecture: str | None, quick_gelu: bool | None = None) -> Parts:
    """Load an archive of OpenAI or a state dict of open_clip; the architecture is inferred if None."""
    import open_clip

    checkpoint = read_checkpoint(path)
    state, named = checkpoint.state, None
    if architecture is not None:
        named = bool(named_config(architecture).get("quick_gelu", False))
    name = architecture or _matching_architecture(state)
    if name is None and not {"ln_final.weight", "text_projection", "visual.conv1.weight"} <= state.keys():
        raise OtptError(f"Cannot infer the architecture of {path} from its {len(state)} tensors; pass architecture=…")
    quick = choose_gelu(quick_gelu, True if checkpoint.openai else None, named, str(path))
    what = f"the weights in {path}"
    if name is None:  # a size without a name in open_clip
        with hub(what, local=True):
            model = _build(_config_of_sizes(state), quick, offline=True)
            model.load_state_dict(state)
            return Parts(_finite(model, str(path)), clip_tokenizer(), {}, "custom")
    config = named_config(name)
    with hub(what, local=not _needs_hub(config)) as offline:
        model = _build(config, quick, offline)
        if checkpoint.openai:
            model.load_state_dict(state)
        else:
            open_clip.load_checkpoint(model, str(path))
        return Parts(_finite(model, str(path)), _tokenizer(config, offline), {}, name)


def _build(config: ModelConfig, quick_gelu: bool, offline: bool) -> nn.Module:
    """Create a model of open_clip with random weights.

    In contrast to ``open_clip.create_model`` this neither logs to the root logger, which would configure the logging of
    the host program, nor looks for files if the hub is ``offline``.
    """
    import open_clip

    options = deepcopy(config)
    text, vision = options["text_cfg"], options["vision_cfg"]
    custom = options.pop("custom_text", False) or "hf_model_name" in text
    if "hf_model_name" in text:
        text["hf_model_name"] = str(download(text["hf_model_name"], "config.json", offline=offline).parent)
        text["hf_model_pretrained"] = False
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
    options["quick_gelu"] = quick_gelu
    kind = open_clip.CLIP
    if custom:
        kind = open_clip.CoCa if "multimodal_cfg" in options else open_clip.CustomTextCLIP
    model: nn.Module = kind(**options)
    return model.eval().requires_grad_(False)


def _tokenizer(config: ModelConfig, offline: bool, folder: Path | None = None) -> Tokenizer:
    """Return the tokenizer of a configuration; ``folder`` contains its files instead of the hub."""
    import open_clip
    from open_clip.tokenizer import HFTokenizer

    text = config["text_cfg"]
    length = text.get("context_length", _CONTEXT_LENGTH)
    options = text.get("tokenizer_kwargs") or {}
    name = text.get("hf_tokenizer_name")
    tokenizer: Tokenizer
    if name:
        wrapper = HFTokenizer(
            name if folder is None else folder,
            context_length=length,
            tokenizer_mode=text.get("tokenizer_mode"),
            local_files_only=offline,
            **options,
        )
        wrapper.tokenizer.padding_side = "right"  # as in training; the class of SigLIP 2 pads on the left
        tokenizer = wrapper
    else:
        tokenizer = open_clip.SimpleTokenizer(context_length=length, **options)
    return tokenizer


def _needs_hub(config: ModelConfig, folder: Path | None = None) -> bool:
    """Return whether the text tower or the tokenizer of a configuration is on the hub."""
    text = config["text_cfg"]
    return "hf_model_name" in text or (folder is None and bool(text.get("hf_tokenizer_name")))


def _hub_weights(place: str, offline: bool) -> Path:
    """Return the weights at open_clip's ``ORG/NAME/FILE`` or ``ORG/NAME/`` on the hub, safetensors if available."""
    repository, file = os.path.split(place)
    if not file:
        return download(repository, "open_clip_model.safetensors", "open_clip_pytorch_model.bin", offline=offline)
    stem, suffix = os.path.splitext(file)
    alternatives = [f"{stem}.safetensors"] if suffix in (".bin", ".pth") else []
    return download(repository, *alternatives, file, offline=offline)


def _url_weights(url: str, spec: str) -> Path:
    """Return the weights at a URL, cached or downloaded by open_clip."""
    import open_clip

    cached = Path.home() / ".cache" / "clip" / os.path.basename(url)
    if not cached.is_file() and not reachable(url):
        raise unreachable(spec, url)
    return Path(open_clip.download_pretrained_from_url(url))


def _folder_weights(folder: Path) -> Path:
    """Return the weights in a folder, as open_clip chooses them."""
    files = [path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".pth")]
    candidates = sorted(files, key=lambda path: (path.suffix != ".safetensors", path))
    preferred = [folder / name for name in _WEIGHTS_FILES if folder / name in candidates]
    if not candidates:
        raise OtptError(f"The folder {folder} has no weights; expected {_WEIGHTS_FILES[0]} next to {CONFIG_FILE}.")
    return preferred[0] if preferred else candidates[0]


def _without_none(preprocess: dict[str, object]) -> dict[str, object]:
    """Return open_clip's ``preprocess_cfg`` without values of None, which mean the default."""
    return {name: value for name, value in preprocess.items() if value is not None}


def _finite(model: nn.Module, source: str) -> nn.Module:
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()) and not name.endswith("attn_mask"):
            bad = int((~torch.isfinite(tensor)).sum())
            raise OtptError(f"The weights of {source} are corrupt: {bad} values of {name} are not finite.")
    return model


def named_config(name: str) -> ModelConfig:
    """Return open_clip's ``model_cfg`` of a built-in architecture."""
    import open_clip

    names = open_clip.list_models()
    if name not in names:  # open_clip would interpret some names as folders or repositories
        hint = _did_you_mean(_near(name, names))
        raise OtptError(f"Unknown architecture {name!r} of open_clip.{hint} `otpt models` lists the names.")
    config: ModelConfig = open_clip.get_model_config(name)
    if not _is_dual(config):
        raise OtptError(f"The architecture {name!r} of open_clip has no image tower and text tower; use another one.")
    return config


def _is_dual(config: ModelConfig) -> bool:
    """Return whether a configuration is of images and texts; version 4 of open_clip also has audio and captions."""
    return "vision_cfg" in config and "text_cfg" in config and "embed_dim" in config


def _read_config(path: Path) -> FolderConfig:
    """Read a configuration file; reject ``trust_remote_code``."""
    try:
        config: FolderConfig = json.loads(path.read_text(encoding="utf-8"))
        options = config["model_cfg"]["text_cfg"].get("tokenizer_kwargs") or {}
        unsafe = bool(options.get("trust_remote_code"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OtptError(f"The file {path} is not a model configuration of open_clip: {summary(error)}.") from error
    if unsafe:
        raise OtptError(f"The file {path} sets trust_remote_code, which could run untrusted code; remove it.")
    return config


def _check_size(config: ModelConfig, folder: Path) -> None:
    """Raise :class:`OtptError` if a configuration has far more parameters than the weights in the folder."""
    stored = sum(file.stat().st_size for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".pt"))
    for part, tower in (("text_cfg", config.get("text_cfg")), ("vision_cfg", config.get("vision_cfg"))):
        width, layers = (tower.get(key) if isinstance(tower, dict) else None for key in ("width", "layers"))
        # lower bound: four attention matrices per layer in half precision
        if isinstance(width, int) and isinstance(layers, int) and 2 * 4 * layers * width**2 > stored:
            raise OtptError(
                f"The folder {folder} has {stored:,} bytes of weights, too few for {layers} layers of width {width} "
                f"({part} of {CONFIG_FILE})."
            )


def _matching_architecture(state: dict[str, Tensor]) -> str | None:
    """Return the shortest open_clip name whose sizes match OpenAI-style weights, or None."""
    import open_clip

    names = [name for name in open_clip.list_models() if _fits(open_clip.get_model_config(name), state)]
    return min(names, key=len, default=None)


def _config_of_sizes(state: dict[str, Tensor]) -> ModelConfig:
    """Return the configuration of OpenAI-style weights, whose heads have a width of 64, from the shapes."""

    def blocks(prefix: str) -> int:
        return len({name[len(prefix) :].split(".")[0] for name in state if name.startswith(prefix)})

    vision: VisionConfig
    if "visual.proj" in state:
        width, _, patch, _ = state["visual.conv1.weight"].shape
        side = patch * math.isqrt(len(state["visual.positional_embedding"]) - 1)
        layers = blocks("visual.transformer.resblocks.")
        vision = {"image_size": side, "patch_size": patch, "width": width, "layers": layers}
    else:
        side = 32 * math.isqrt(len(state["visual.attnpool.positional_embedding"]) - 1)
        stages = [blocks(f"visual.layer{stage}.") for stage in (1, 2, 3, 4)]
        vision = {"image_size": side, "width": len(state["visual.layer1.0.conv1.weight"]), "layers": stages}
    vocabulary, width = state["token_embedding.weight"].shape
    return {
        "embed_dim": state["text_projection"].shape[1],
        "vision_cfg": vision,
        "text_cfg": {
            "context_length": len(state["positional_embedding"]),
            "vocab_size": vocabulary,
            "width": width,
            "heads": width // 64,
            "layers": blocks("transformer.resblocks."),
        },
    }


def _fits(config: ModelConfig, state: dict[str, Tensor]) -> bool:
    if not _is_dual(config):
        return False
    vision, text = config["vision_cfg"], config["text_cfg"]
    if config.get("custom_text") or "timm_model_name" in vision or "hf_model_name" in text:
        return False
    if not {"width", "layers", "image_size"} <= vision.keys() or not {"width", "layers"} <= text.keys():
        return False  # towers of open_clip 4 for images of any aspect ratio
    width, layers = vision["width"], vision["layers"]
    sizes: dict[str, tuple[int, ...]] = {
        "text_projection": (text["width"], config["embed_dim"]),
        "positional_embedding": (text["context_length"], text["width"]),
        "token_embedding.weight": (text["vocab_size"], text["width"]),
    }
    counts = [("transformer.resblocks.{}.ln_1.weight", text["layers"])]
    if isinstance(layers, list):
        sizes["visual.attnpool.positional_embedding"] = ((vision["image_size"] // 32) ** 2 + 1, 32 * width)
        counts += [(f"visual.layer{i}.{{}}.conv1.weight", count) for i, count in enumerate(layers, start=1)]
    else:
        patch = vision["patch_size"]
        sizes["visual.conv1.weight"] = (width, 3, patch, patch)
        sizes["visual.positional_embedding"] = ((vision["image_size"] // patch) ** 2 + 1, width)
        counts.append(("visual.transformer.resblocks.{}.ln_1.weight", layers))
    same = all(name in state and tuple(state[name].shape) == size for name, size in sizes.items())
    return same and all(form.format(n - 1) in state and form.format(n) not in state for form, n in counts)


def _split(spec: str) -> tuple[str, str]:
    """Split ``ViT-B-16/openai`` into name and tag; raise ``OtptError`` with suggestions for unknown models."""
    import open_clip

    name, _, tag = spec.rpartition("/") if "/" in spec else (spec, "", "")
    tags = open_clip_tags().get(name, ())
    if tag in tags:
        return name, tag
    if tags:
        problem = f"has no weights tagged {tag!r}" if tag else "needs a tag"
        raise OtptError(f"The backbone {name!r} {problem}; available tags: {', '.join(tags)}.")
    if name in open_clip.list_models():
        raise OtptError(f"open_clip has no weights for {name!r}; pass a checkpoint file, or random:{name}.")
    all_tags = open_clip_tags()
    wanted, _, tag = spec.partition("/")
    near = [*_near(spec.replace("/", "-"), all_tags, 0.9), *_near(wanted, [*all_tags, *EMBEDDED])]  # ViT-B/16
    suggestions = []
    for name in dict.fromkeys(near):
        tags = all_tags.get(name, ())
        suggestions.append(f"{name}/{tag if tag in tags else tags[0]}" if tags else name)
    hint = _did_you_mean(suggestions)
    if not near and spec.count("/") == 1:
        hint = f" On the Hugging Face hub, a CLIPModel is hf:{spec}, a model of open_clip hf-hub:{spec}."
    raise OtptError(
        f"Unknown backbone {spec!r}: neither a file, a folder, nor a name of open_clip.{hint} `otpt models` lists the "
        "available models."
    )


def _near(name: str, names: Iterable[str], cutoff: float = 0.6) -> list[str]:
    folded = {other.lower(): other for other in reversed(list(names))}
    return [folded[match] for match in difflib.get_close_matches(name.lower(), folded, cutoff=cutoff)]


def _did_you_mean(names: Sequence[str]) -> str:
    return f" Did you mean: {', '.join(names)}?" if names else ""
