"""What can be loaded: open_clip's names and tags, and the other forms of a spec."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otpt.backbones.sources.open_clip_names import open_clip_names
from otpt.errors import OtptError


@dataclass(frozen=True)
class ModelEntry:
    """One line of ``otpt models``."""

    name: str
    description: str


_FORMS = (
    ModelEntry("NAME/TAG", "an open_clip architecture and the tag of its weights, e.g. ViT-B-16/openai; listed below"),
    ModelEntry("hf-hub:ORG/NAME", "an open_clip model on the Hugging Face hub"),
    ModelEntry(
        "local-dir:FOLDER", "a folder with open_clip_config.json and weights; the path of the folder also works"
    ),
    ModelEntry(
        "FILE.pt, .pth, .bin, .safetensors", "OpenAI's archive or an open_clip state dict, read without running code"
    ),
    ModelEntry("hf:ORG/NAME", "a CLIPModel of Hugging Face transformers (PLIP and others), or the path of its folder"),
    ModelEntry("medclip:FOLDER", "MedCLIP-ViT as published: pytorch_model.bin, and vocab.txt if available"),
    ModelEntry("random:ARCHITECTURE", "fixed random weights, for benchmarks and tests"),
)


def list_models() -> list[ModelEntry]:
    """What ``load_backbone`` takes: the forms first, then models of the package, then open_clip's names with tags."""
    pocket = ModelEntry("pocket", "a small CLIP that ships with the package: no download")
    named = [ModelEntry(name, "tags: " + ", ".join(tags)) for name, tags in open_clip_names().tags.items()]
    return [*_FORMS, pocket, *named]


def split_name_and_tag(spec: str) -> tuple[str, dict[str, Any]]:
    """``ViT-B-16/openai`` → the architecture's name and open_clip's entry for the tag; helpful errors otherwise."""
    name, _, tag = spec.rpartition("/") if "/" in spec else (spec, "", "")
    known = open_clip_names()
    tags = known.tags.get(name)
    if not tags:
        if name in known.architectures:
            raise OtptError(
                f"open_clip has no weights for {name!r}; give a checkpoint file with architecture={name!r}, "
                f"or random:{name}."
            )
        raise _unknown(spec, known.tags)
    if not tag:
        raise OtptError(f"The backbone {name!r} needs a tag, as in {name}/{tags[0]}; its tags: {', '.join(tags)}.")
    from open_clip.pretrained import get_pretrained_cfg

    pretrained: dict[str, Any] = get_pretrained_cfg(name, tag)
    if not pretrained:
        raise OtptError(f"The backbone {name!r} has no weights tagged {tag!r}; its tags: {', '.join(tags)}.")
    return name, pretrained


def _unknown(spec: str, tags: Mapping[str, Sequence[str]]) -> OtptError:
    folded = {name.lower(): name for name in reversed(list(tags))}
    wanted, _, tag = spec.lower().partition("/")
    near = difflib.get_close_matches(wanted, folded, n=3, cutoff=0.6)
    whole = difflib.get_close_matches(spec.lower().replace("/", "-"), folded, n=1, cutoff=0.9)  # ViT-B/16
    names = [folded[name] for name in dict.fromkeys([*whole, *near])]
    specs = [f"{name}/{tag if tag in tags[name] else tags[name][0]}" for name in names]
    if difflib.get_close_matches(wanted, ["pocket"], cutoff=0.7):
        specs.insert(0, "pocket")
    hint = f" Did you mean: {', '.join(specs)}?" if specs else ""
    if not specs and spec.count("/") == 1:
        hint = f" On the Hugging Face hub, a CLIPModel is hf:{spec}, a model of open_clip hf-hub:{spec}."
    return OtptError(
        f"Unknown backbone {spec!r}: neither a file, a folder, nor a name of open_clip.{hint} "
        f"`otpt models` lists what can be loaded."
    )
