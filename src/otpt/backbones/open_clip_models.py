"""Loading of open_clip models by name, from the hub, a folder or a checkpoint file."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otpt.backbones.checkpoints import read_checkpoint
from otpt.backbones.sources import Parts, choose_gelu, hub, hub_file, reachable, summary, unreachable
from otpt.errors import OtptError

CONFIG_FILE = "open_clip_config.json"


@cache
def open_clip_tags() -> dict[str, tuple[str, ...]]:
    """Return {architecture: tags of its published weights} of open_clip."""
    import open_clip

    tags: dict[str, tuple[str, ...]] = {}
    for name, tag in open_clip.list_pretrained():
        tags[name] = (*tags.get(name, ()), tag)
    return tags


@cache
def clip_tokenizer() -> Any:
    """Return CLIP's byte-pair tokenizer: start token 49406, end token 49407, padding 0."""
    import open_clip

    return open_clip.SimpleTokenizer()


def load_named(spec: str, quick_gelu: bool | None = None) -> Parts:
    """Load an architecture with tagged weights, such as ``ViT-B-16/openai``."""
    from open_clip.pretrained import get_pretrained_cfg

    name, tag = _split(spec)
    pretrained = get_pretrained_cfg(name, tag)
    # a tag of open_clip may omit the activation if its architecture defines it
    needed = bool(pretrained.get("quick_gelu", False) or _named_config(name).get("quick_gelu", False))
    url = None if pretrained.get("hf_hub") else pretrained["url"]
    cached = url and (Path.home() / ".cache" / "clip" / os.path.basename(url)).is_file()
    if url and not cached and not reachable(url):
        raise unreachable(spec, url)
    quick = choose_gelu(quick_gelu, needed, None, spec)
    with hub(spec):
        model = _create(name, pretrained=tag, force_quick_gelu=quick, quick_gelu=quick, require_pretrained=True)
        return _parts(model, name, name, spec)


def load_random(name: str, quick_gelu: bool | None = None) -> Parts:
    """Create an architecture with fixed random weights."""
    quick = choose_gelu(quick_gelu, None, bool(_named_config(name).get("quick_gelu", False)), name)
    with hub(f"the text tower of {name}"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _parts(_create(name, load_weights=False, quick_gelu=quick), name, name, name)


def load_hub(repository: str, quick_gelu: bool | None = None) -> Parts:
    """Load an open_clip model from the Hugging Face hub."""
    spec = f"hf-hub:{repository}"
    config = _read_config(hub_file(repository, CONFIG_FILE, what=spec))
    with hub(spec):
        return _configured(spec, config, spec, quick_gelu)


def load_folder(folder: str, quick_gelu: bool | None = None) -> Parts:
    """Load a folder with ``open_clip_config.json`` and weights."""
    path = Path(os.path.expanduser(folder))
    if not path.is_dir():
        raise OtptError(f"There is no folder {path}; check the path.")
    if not (path / CONFIG_FILE).is_file():
        raise OtptError(f"The folder {path} has no {CONFIG_FILE}; expected the folder of an open_clip model.")
    config = _read_config(path / CONFIG_FILE)
    _check_size(config, path)
    with hub(f"the model in {path}", local=True):
        return _configured(f"local-dir:{path}", config, str(path), quick_gelu)


def load_file(path: Path, architecture: str | None, quick_gelu: bool | None = None) -> Parts:
    """Load an archive of OpenAI or a state dict of open_clip; the architecture is inferred if None."""
    from open_clip.factory import load_checkpoint
    from open_clip.model import build_model_from_openai_state_dict

    checkpoint = read_checkpoint(path)
    state, named = checkpoint.state, None
    if architecture is not None:
        named = bool(_named_config(architecture).get("quick_gelu", False))
    name = architecture or _matching_architecture(state)
    if name is None and not {"ln_final.weight", "text_projection", "visual.conv1.weight"} <= state.keys():
        raise OtptError(f"Cannot infer the architecture of {path} from its {len(state)} tensors; pass architecture=…")
    quick = choose_gelu(quick_gelu, True if checkpoint.openai else None, named, str(path))
    with hub(f"the weights in {path}", local=True):
        if name is None:
            # a size without a name in open_clip; load the weights again, because the function rounds them to float16
            model = build_model_from_openai_state_dict(dict(state), quick, torch.float32).float()
            model.load_state_dict(state)
            return Parts(_finite(model, str(path)), clip_tokenizer(), {}, "custom")
        model = _create(name, load_weights=False, quick_gelu=quick)
        if checkpoint.openai:
            model.load_state_dict(state)
        else:
            load_checkpoint(model, str(path))
        return _parts(model, name, name, str(path))


def _configured(spec: str, config: dict[str, Any], source: str, quick_gelu: bool | None) -> Parts:
    quick = choose_gelu(quick_gelu, bool(config.get("quick_gelu", False)), None, source)
    model = _create(spec, quick_gelu=quick, require_pretrained=True)
    return _parts(model, spec, source.rstrip("/").rsplit("/", 1)[-1], source)


def _create(name: str, **options: Any) -> Any:
    """Create a model with open_clip's factory, which loads files with ``weights_only=True``."""
    import open_clip

    return open_clip.create_model(name, pretrained_text=False, **options).eval().requires_grad_(False)


def _parts(model: Any, name: str, architecture: str, source: str) -> Parts:
    import open_clip

    return Parts(_finite(model, source), open_clip.get_tokenizer(name), model.visual.preprocess_cfg, architecture)


def _finite(model: Any, source: str) -> Any:
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()) and not name.endswith("attn_mask"):
            bad = int((~torch.isfinite(tensor)).sum())
            raise OtptError(f"The weights of {source} are corrupt: {bad} values of {name} are not finite.")
    return model


def _named_config(name: str) -> dict[str, Any]:
    """Return open_clip's ``model_cfg`` of a built-in architecture."""
    import open_clip

    known = open_clip.list_models()
    if name not in known:  # open_clip would interpret some names as folders or repositories
        hint = _did_you_mean(_near(name, known))
        raise OtptError(f"Unknown architecture {name!r} of open_clip.{hint} `otpt models` lists the names.")
    config: dict[str, Any] = open_clip.get_model_config(name)
    return config


def _read_config(path: Path) -> dict[str, Any]:
    """Return the ``model_cfg`` of a configuration file; reject ``trust_remote_code``."""
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["model_cfg"]
        options = config["text_cfg"].get("tokenizer_kwargs") or {}
        unsafe = bool(options.get("trust_remote_code"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OtptError(f"The file {path} is not a model configuration of open_clip: {summary(error)}.") from error
    if unsafe:
        raise OtptError(f"The file {path} sets trust_remote_code, which could run untrusted code; remove it.")
    return config


def _check_size(config: dict[str, Any], folder: Path) -> None:
    """Raise :class:`OtptError` if a configuration has far more parameters than the weights in the folder."""
    stored = sum(each.stat().st_size for each in folder.iterdir() if each.suffix in (".safetensors", ".bin", ".pt"))
    for part in ("text_cfg", "vision_cfg"):
        tower = config.get(part)
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

    found = [name for name in open_clip.list_models() if _fits(open_clip.get_model_config(name), state)]
    return min(found, key=len, default=None)


def _fits(config: dict[str, Any], state: dict[str, Tensor]) -> bool:
    vision, text = config["vision_cfg"], config["text_cfg"]
    if config.get("custom_text") or "timm_model_name" in vision or "hf_model_name" in text:
        return False
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
    known = open_clip_tags()
    wanted, _, tag = spec.partition("/")
    near = dict.fromkeys([*_near(spec.replace("/", "-"), known, 0.9), *_near(wanted, [*known, "pocket"])])  # ViT-B/16
    hint = _did_you_mean(
        [f"{each}/{tag if tag in known[each] else known[each][0]}" if each in known else each for each in near]
    )
    if not near and spec.count("/") == 1:
        hint = f" On the Hugging Face hub, a CLIPModel is hf:{spec}, a model of open_clip hf-hub:{spec}."
    raise OtptError(
        f"Unknown backbone {spec!r}: neither a file, a folder, nor a name of open_clip.{hint} `otpt models` lists the "
        "available models."
    )


def _near(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    folded = {each.lower(): each for each in reversed(list(known))}
    return [folded[each] for each in difflib.get_close_matches(name.lower(), folded, cutoff=cutoff)]


def _did_you_mean(names: Sequence[str]) -> str:
    return f" Did you mean: {', '.join(names)}?" if names else ""
