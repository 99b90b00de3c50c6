"""The shapes of a model, from its configuration: JSON files that open_clip ships, read without importing it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from otpt.errors import OtptError, unknown
from otpt.files import read_json

_POCKET = Path(__file__).parent.parent / "backbones" / "pocket" / "open_clip_config.json"
_SIGLIP = re.compile(r"vit_(base|large|so400m)_patch(\d+)_siglip\w*?_(\d+)$")
_SIGLIP_SIZES = {"base": (768, 12, 3072), "large": (1024, 24, 4096), "so400m": (1152, 27, 4304)}
"""Width, layers and hidden width of timm's SigLIP towers."""
_PLAIN_VIT = {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio", "patch_dropout", "pool_type"}


@dataclass(frozen=True)
class VisionTransformer:
    """``side`` tokens a side, and a class token that is read (``class_token``) or attention pooling over all."""

    image_size: int
    patch: int
    width: int
    layers: int
    hidden: int
    class_token: bool

    @property
    def side(self) -> int:
        """Patches a side."""
        return self.image_size // self.patch

    @property
    def tokens(self) -> int:
        """Rows of the transformer per view."""
        return self.side**2 + self.class_token


@dataclass(frozen=True)
class ResNet:
    """CLIP's modified ResNet: ``layers`` of each stage, ``width`` of the first."""

    image_size: int
    layers: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class Hybrid:
    """The image tower of ``pocket``, :mod:`otpt.backbones.pocket`."""

    image_size: int


@dataclass(frozen=True)
class OtherTower:
    """An image tower that is built, without weights, to be counted."""

    image_size: int


@dataclass(frozen=True)
class TextTransformer:
    """A text tower; not ``causal`` means that whole sentences of ``length`` tokens are encoded."""

    length: int
    vocabulary: int
    width: int
    layers: int
    hidden: int
    causal: bool


@dataclass(frozen=True)
class Architecture:
    """The shapes of a model.

    Attributes:
        name: of open_clip, or "pocket".
        features: D.
        vision, text: the two towers.
        config: open_clip's ``model_cfg``.
    """

    name: str
    features: int
    vision: VisionTransformer | ResNet | Hybrid | OtherTower
    text: TextTransformer
    config: dict[str, Any]

    def __hash__(self) -> int:
        return hash((self.name, self.features, self.vision, self.text))


def read_architecture(spec: str) -> Architecture:
    """The shapes of a backbone as ``--backbone`` names it: NAME, NAME/TAG, random:NAME, "pocket", or a folder with
    ``open_clip_config.json``; ``OtptError`` for what shows its shapes only when it is loaded."""
    folder = Path(spec.removeprefix("local-dir:")).expanduser()
    if spec == "pocket":
        return _architecture("pocket", _POCKET)
    if (folder / _POCKET.name).is_file():
        return _architecture(str(folder), folder / _POCKET.name)
    known = sorted(path.stem for path in _configs().glob("*.json"))
    name = spec.removeprefix("random:")
    name = name if name in known else name.partition("/")[0]
    if name not in known:
        if folder.exists() or ":" in spec:
            raise OtptError(
                f"The shapes of {spec!r} are not known without loading it; give the open_clip name of its architecture."
            )
        plain = spec.replace("/", "-")  # as papers write it: ViT-B/16
        if plain not in known:
            raise unknown("architecture", spec, ("pocket", *(each for each in known if _is_usual(each))))
        name = plain
    return _architecture(name, _configs() / f"{name}.json")


def _is_usual(name: str) -> bool:
    """Short enough for a list in a message; all are accepted."""
    return re.fullmatch(r"RN\d+(x\d+)?|ViT-[BLHg]-?\d*|ViT-[BL]-16-SigLIP2?", name) is not None


@cache
def _configs() -> Path:
    """Where open_clip has its configurations; the package is found, not imported."""
    package = importlib.util.find_spec("open_clip")
    for folder in (package and package.submodule_search_locations) or ():
        if (Path(folder) / "model_configs").is_dir():
            return Path(folder) / "model_configs"
    raise OtptError("The model configurations of open_clip were not found; reinstall it: pip install open_clip_torch.")


def _architecture(name: str, path: Path) -> Architecture:
    found = read_json(path, "model configuration")
    try:
        config = found["model_cfg"] if path.name == _POCKET.name else found
        return Architecture(name, int(config["embed_dim"]), _vision(config), _text(config["text_cfg"]), config)
    except OtptError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise OtptError(f"The model configuration of {name!r} is not one of open_clip's: {why}.") from None


def _vision(config: dict[str, Any]) -> VisionTransformer | ResNet | Hybrid | OtherTower:
    vision = config["vision_cfg"]
    size = int(vision["image_size"])
    found = _SIGLIP.match(vision.get("timm_model_name") or "")
    if found and vision.get("timm_pool") == "map" and vision.get("timm_proj") == "none":
        width, layers, hidden = _SIGLIP_SIZES[found[1]]
        return VisionTransformer(size, int(found[2]), width, layers, hidden, class_token=False)
    if vision.get("timm_model_name") == "pocket_hybrid":
        return Hybrid(size)
    layers = vision.get("layers")
    if isinstance(layers, list):
        return ResNet(size, tuple(layers), int(vision.get("width", 64)))
    plain = set(vision) <= _PLAIN_VIT and vision.get("pool_type", "tok") == "tok"
    if not plain or "multimodal_cfg" in config or not isinstance(layers, int):
        return OtherTower(size)
    hidden = int(vision["width"] * vision.get("mlp_ratio", 4.0))
    return VisionTransformer(size, int(vision["patch_size"]), int(vision["width"]), layers, hidden, class_token=True)


def _text(text: dict[str, Any]) -> TextTransformer:
    if text.get("hf_model_name"):
        raise OtptError(
            f"The text tower {text['hf_model_name']!r} is one of transformers, whose shapes are not in the "
            "configuration; expected an architecture with a text tower of open_clip."
        )
    causal = not text.get("no_causal_mask") and text.get("pool_type", "argmax") in {"argmax", "eos"}
    width = int(text.get("width", 512))
    hidden = int(width * text.get("mlp_ratio", 4.0))
    length, vocabulary = int(text.get("context_length", 77)), int(text.get("vocab_size", 49408))
    return TextTransformer(length, vocabulary, width, int(text.get("layers", 12)), hidden, causal)
