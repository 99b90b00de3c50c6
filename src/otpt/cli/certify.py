"""``otpt certify DATASET``: radii within which PromptSmooth's answer cannot be changed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from otpt.cli import options as shared
from otpt.cli.evaluate import add_context_option
from otpt.cli.medical import DEFAULTS, add_noise_options, smoothing_for
from otpt.data import load_dataset
from otpt.errors import OtptError
from otpt.medical.promptsmooth.certification import RADII, CertifiedPicture, certified_accuracy, certify_dataset
from otpt.medical.settings import MedicalSettings
from otpt.prompts import Prompt

_METHODS = ("promptsmooth", "promptsmooth+o-tpt")


def add_command(commands: Any) -> None:
    """Register ``certify``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "certify",
        help="certified radii of PromptSmooth",
        description="Tune a prompt for each picture on noisy copies of it, then certify its class by randomised "
        "smoothing. One JSON line a picture and method; stopped, it goes on when the same command is given again.",
    )
    parser.add_argument("dataset", metavar="DATASET", help="of 'otpt datasets', or your own folder, table or shards")
    parser.add_argument("--data", type=Path, metavar="ROOT", help="the folder that holds the data sets")
    parser.add_argument("--classes", type=Path, metavar="FILE", help="class names, one a line in label order")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N pictures")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="of the certificates, JSON lines")
    parser.add_argument(
        "--methods", nargs="+", default=list(_METHODS), metavar="NAME", help=f"(default: {' '.join(_METHODS)})"
    )
    parser.add_argument(
        "--set", nargs="+", default=[], dest="settings", metavar="NAME=VALUE", help="replace numbers: lambda=6 …"
    )
    parser.add_argument("--prompt", metavar="WORDS", help="context in place of the data set's own")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="how many of its tokens to tune")
    add_context_option(parser)
    group = parser.add_argument_group("smoothing")
    add_noise_options(group)
    group.add_argument(
        "--selection", type=int, metavar="N", help=f"votes for the class (default: {DEFAULTS.selection})"
    )
    group.add_argument("--samples", type=int, metavar="N", help=f"votes for its bound (default: {DEFAULTS.samples})")
    group.add_argument("--alpha", type=float, metavar="X", help=f"chance of a wrong one (default: {DEFAULTS.alpha})")
    group.add_argument("--seed", type=int, default=3, metavar="N", help="of the noise (default: %(default)s)")
    shared.add_model_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Certify and print."""
    options.method = options.methods
    methods = shared.chosen_methods(options)
    strange = next((method.name for method in methods if method.system != "promptsmooth"), None)
    if strange is not None:
        raise OtptError(f"Method {strange!r} has no certificate; expected {' or '.join(_METHODS)}.")
    if options.prompt is None and options.prompt_tokens is not None:
        raise OtptError("--prompt-tokens was given without --prompt; expected both.")
    settings = MedicalSettings(
        methods=methods,
        prompts=None if options.prompt is None else [Prompt(options.prompt, tokens=options.prompt_tokens)],
        contexts=options.context,
        seeds=[options.seed],
        limit=options.limit,
        smoothing=smoothing_for(options),
    )
    dataset = load_dataset(options.dataset, root=options.data, classes=options.classes)
    backbone = shared.chosen_backbone(options)
    found: list[CertifiedPicture] = []
    for number, certificates in enumerate(certify_dataset(dataset, backbone, settings, out=options.out), start=1):
        found += certificates
        words = "; ".join(f"{each.method}: {_words(each)}" for each in certificates)
        print(f"otpt: picture {number}: {words}", file=sys.stderr, flush=True)
    print("certified accuracy %  " + "  ".join(f"r ≥ {radius:<4g}" for radius in RADII) + "  abstained %")
    for method in methods:
        own = [each for each in found if each.method == method.name]
        shares = [f"{100 * certified_accuracy(own, radius):8.2f}" for radius in RADII]
        abstained = sum(each.prediction is None for each in own) / len(own)
        print(f"{method.name:20}  {'  '.join(shares)}  {100 * abstained:11.2f}")
    print(f"Certificates are in {str(options.out)!r}.")
    return 0


def _words(certificate: CertifiedPicture) -> str:
    return "abstained" if certificate.prediction is None else f"radius {certificate.radius:.3f}"
