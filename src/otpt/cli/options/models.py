"""Which model: backbone, device, precision and compiling."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otpt.backbones import Backbone

DEFAULT_BACKBONE = "ViT-B-16/openai"


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Model, device, precision and compiling."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--backbone",
        default=DEFAULT_BACKBONE,
        metavar="SPEC",
        help="open_clip NAME/TAG, hf-hub:…, local-dir:…, a checkpoint file (default: %(default)s; see 'otpt models')",
    )
    group.add_argument(
        "--architecture",
        metavar="NAME",
        help="open_clip architecture of a checkpoint file, if it cannot be inferred",
    )
    group.add_argument(
        "--quick-gelu",
        action=argparse.BooleanOptionalAction,
        help="the activation that the weights were trained with (default: by tag, archive or configuration)",
    )
    add_device_options(group)


def add_device_options(group: argparse._ActionsContainer) -> None:
    """Device, precision and compiling."""
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: %(default)s)")
    group.add_argument(
        "--precision",
        default="float32",
        help="float32, bf16 or fp16 (autocast of the image tower), bf16-both or fp16-both (of both towers), float64 "
        "(default: %(default)s)",
    )
    words = "torch.compile the image tower, on CUDA with CUDA graphs; takes a minute or so"
    group.add_argument("--compile", action="store_true", help=words)


def chosen_backbone(options: argparse.Namespace, spec: str | None = None) -> Backbone:
    """The model of :func:`add_model_options`, or another one with the same options."""
    from otpt.backbones import load_backbone

    return load_backbone(
        options.backbone if spec is None else spec,
        device=options.device,
        precision=options.precision,
        compile=options.compile,
        architecture=options.architecture,
        quick_gelu=options.quick_gelu,
    )
