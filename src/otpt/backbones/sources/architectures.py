"""Architectures: open_clip's by name, or inferred from the shapes of the weights; and which GELU they run."""

from __future__ import annotations

import copy
import difflib
import re
import sys
import warnings
from typing import Any

from torch import Tensor

from otpt.errors import OtptError

Config = dict[str, Any]


class QuickGeluWarning(UserWarning):
    """The activation of a model may not be the one its weights were trained with."""


def named_config(name: str) -> Config:
    """open_clip's ``model_cfg`` of a built-in architecture; ``OtptError`` with suggestions for an unknown name."""
    import open_clip

    known = open_clip.list_models()
    if name not in known:  # not left to open_clip, which takes some names for folders and repositories
        folded = {each.lower(): each for each in known}
        near = [folded[each] for each in difflib.get_close_matches(name.lower(), folded)]
        hint = f" Did you mean: {', '.join(near)}?" if near else ""
        raise OtptError(f"Unknown architecture {name!r} of open_clip.{hint} `otpt models` lists the names.")
    config: Config = open_clip.get_model_config(name)
    return config


def build_model(config: Config, quick_gelu: bool) -> Any:
    """An open_clip model of that configuration, with the weights of its initialisation."""
    from open_clip.coca_model import CoCa
    from open_clip.model import CLIP, CustomTextCLIP

    config = copy.deepcopy(config)
    config["quick_gelu"] = quick_gelu
    text, vision = config["text_cfg"], config["vision_cfg"]
    huggingface_text = bool(text.get("hf_model_name"))
    if huggingface_text:
        text["hf_model_pretrained"] = False
    if vision.get("timm_model_name"):
        vision["timm_model_pretrained"] = False
    if vision.get("timm_model_name") == "pocket_hybrid":
        from otpt.backbones.pocket import registration  # noqa: F401  tells timm that name
    custom_text = config.pop("custom_text", False) or huggingface_text
    kind = (CoCa if "multimodal_cfg" in config else CustomTextCLIP) if custom_text else CLIP
    try:
        return kind(**config).eval().requires_grad_(False)
    except Exception as error:  # whatever open_clip, timm and torch make of somebody's numbers
        why = f"{type(error).__name__}: {error}".strip(": .")
        raise OtptError(f"The model configuration cannot be built by open_clip ({why}); check its values.") from error


def infer_config(state: dict[str, Tensor], source: str) -> tuple[str, Config]:
    """Name and configuration of the CLIP whose OpenAI-style weights these are.

    Shapes show everything but the number of heads and the activation: heads are taken from open_clip's
    architecture of the same shapes if there is one, else one for every 64 channels, as in all of OpenAI's
    models.
    """
    import open_clip

    custom_text = "text.positional_embedding" in state
    shapes = {name.removeprefix("text.") if custom_text else name: tuple(state[name].shape) for name in state}
    try:
        config = _config_from_shapes(shapes)
    except (KeyError, IndexError, ValueError, ZeroDivisionError, TypeError) as error:
        lacking = f"no {error} of a CLIP" if isinstance(error, KeyError) else "no CLIP has such shapes"
        raise OtptError(
            f"The architecture of {source} cannot be seen from its weights ({lacking} among its "
            f"{len(state)} tensors); name it with architecture=…"
        ) from error
    if custom_text:
        config["custom_text"] = True
    wanted = _signature(config)
    same = [name for name in open_clip.list_models() if _signature(open_clip.get_model_config(name)) == wanted]
    if not same:
        return "custom", config
    name = min(same, key=len)
    known = named_config(name)
    config["vision_cfg"]["head_width"] = known["vision_cfg"].get("head_width", 64)
    config["text_cfg"]["heads"] = known["text_cfg"]["heads"]
    return name, config


def _config_from_shapes(shapes: dict[str, tuple[int, ...]]) -> Config:
    def count(pattern: str) -> int:
        return len({found.group(1) for name in shapes if (found := re.match(pattern, name))})

    if "visual.proj" in shapes:
        width, _, patch, _ = shapes["visual.conv1.weight"]
        side = round((shapes["visual.positional_embedding"][0] - 1) ** 0.5)
        vision: Config = {
            "image_size": patch * side,
            "layers": count(r"visual\.transformer\.resblocks\.(\d+)\."),
            "width": width,
            "patch_size": patch,
        }
    else:
        side = round((shapes["visual.attnpool.positional_embedding"][0] - 1) ** 0.5)
        vision = {
            "image_size": side * 32,
            "layers": [count(rf"visual\.layer{stage}\.(\d+)\.") for stage in (1, 2, 3, 4)],
            "width": shapes["visual.layer1.0.conv1.weight"][0],
        }
    text_width = shapes["ln_final.weight"][0]
    text: Config = {
        "context_length": shapes["positional_embedding"][0],
        "vocab_size": shapes["token_embedding.weight"][0],
        "width": text_width,
        "heads": max(text_width // 64, 1),
        "layers": count(r"transformer\.resblocks\.(\d+)\."),
    }
    return {"embed_dim": shapes["text_projection"][1], "vision_cfg": vision, "text_cfg": text}


def _signature(config: Config) -> tuple[Any, ...]:
    vision, text = config["vision_cfg"], config["text_cfg"]
    layers = vision.get("layers")
    return (
        config["embed_dim"],
        vision.get("timm_model_name"),
        vision.get("image_size"),
        tuple(layers) if isinstance(layers, list) else layers,
        vision.get("width"),
        vision.get("patch_size"),
        text.get("context_length"),
        text.get("vocab_size"),
        text.get("width"),
        text.get("layers"),
        text.get("hf_model_name"),
        bool(config.get("custom_text", False)),
    )


def choose_gelu(asked: bool | None, needed: bool | None, named: bool | None, source: str) -> bool:
    """Whether to build QuickGELU, x·σ(1.702x), instead of GELU.

    ``asked`` is the user's choice and takes precedence; ``needed`` is what the weights were trained with, where known;
    ``named`` is what the architecture the user named says. A contradiction warns, and so
    does an unknown activation.
    """
    words = {True: "QuickGELU", False: "GELU"}
    if asked is not None:
        if needed is not None and asked != needed:
            _warn(f"{source} was trained with {words[needed]}, but runs with {words[asked]} as asked: "
                  f"its predictions will be off.")  # fmt: skip
        return asked
    if needed is not None:
        if named is not None and named != needed:
            _warn(f"The architecture named for {source} has {words[named]}, but the weights were trained with "
                  f"{words[needed]}, which is used; pass quick_gelu={named} to insist.")  # fmt: skip
        return needed
    if named is None:
        _warn(f"Whether {source} was trained with GELU or QuickGELU cannot be seen from its weights; GELU is used. "
              f"Pass quick_gelu=True or False to choose.")  # fmt: skip
        return False
    return named


def _warn(message: str) -> None:
    """Warn at the line outside this package that asked for the model."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "otpt":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, QuickGeluWarning, stacklevel=level)
