"""``otpt certify DATASET``: radii within which PromptSmooth's answer cannot be changed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli import options as shared
from otpt.cli.evaluate import UNREADABLE, add_context_option, add_data_options, dataset_maker, refuse_unused_names
from otpt.cli.medical import DEFAULTS, add_noise_options, smoothing_for
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.medical.promptsmooth.certification import CertifiedPicture

_METHODS = ("promptsmooth", "promptsmooth+o-tpt")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``certify``."""
    parser.description = (
        "Tune a prompt for each picture on noisy copies of it, then certify its class by randomised "
        "smoothing. One JSON line a picture and method; stopped, it goes on when the same command is given again. Exit "
        "code 3 if pictures could not be read."
    )
    parser.add_argument("dataset", metavar="DATASET", help="of 'otpt datasets', or your own folder, table or shards")
    add_data_options(parser)
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
    parser.add_argument("--json", action="store_true", help="the shares as one JSON object")
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
    from otpt.medical.promptsmooth.certification import certify_dataset
    from otpt.medical.settings import MedicalSettings
    from otpt.prompts import Prompt

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
    refuse_unused_names(options, [options.dataset])
    dataset = dataset_maker(options, options.dataset)()
    settings.prompts_for(dataset)  # what is wrong with a context is told before a large model is read
    backbone = shared.chosen_backbone(options)
    found: list[CertifiedPicture] = []
    for number, certificates in enumerate(certify_dataset(dataset, backbone, settings, out=options.out), start=1):
        found += certificates
        words = "; ".join(f"{each.method}: {_words(each)}" for each in certificates)
        print(f"otpt: picture {number}: {words}", file=sys.stderr, flush=True)
    by_method = {method.name: [each for each in found if each.method == method.name] for method in methods}
    unreadable = sum(each.error is not None for each in by_method[methods[0].name])
    if options.json:
        _print_json(options.out, by_method, unreadable)
    else:
        _print_table(options.out, by_method)
    if unreadable:
        print(f"otpt: could not read {unreadable} of the pictures; why is in 'error' of their lines", file=sys.stderr)
    return UNREADABLE if unreadable else 0


def _print_table(out: Path, by_method: Mapping[str, Sequence[CertifiedPicture]]) -> None:
    from otpt.medical.promptsmooth.certification import RADII, abstained, certified_accuracy

    print("certified accuracy %  " + "  ".join(f"r ≥ {radius:<4g}" for radius in RADII) + "  abstained %")
    for name, own in by_method.items():
        shares = [_percent(certified_accuracy(own, radius), 8) for radius in RADII]
        print(f"{name:20}  {'  '.join(shares)}  {_percent(abstained(own), 11)}")
    print(f"Certificates are in {str(out)!r}.")


def _print_json(out: Path, by_method: Mapping[str, Sequence[CertifiedPicture]], unreadable: int) -> None:
    from otpt.medical.promptsmooth.certification import RADII, abstained, certified_accuracy

    methods = [
        {
            "method": name,
            "certified_accuracy": {f"{radius:g}": certified_accuracy(own, radius) for radius in RADII},
            "abstained": abstained(own),
        }
        for name, own in by_method.items()
    ]
    print(json.dumps({"certificates": str(out), "unreadable": unreadable, "methods": methods}, indent=2))


def _percent(share: float | None, width: int) -> str:
    return f"{'–':>{width}}" if share is None else f"{100 * share:{width}.2f}"


def _words(certificate: CertifiedPicture) -> str:
    if certificate.error is not None:
        return "cannot be read"
    return "abstained" if certificate.prediction is None else f"radius {certificate.radius:.3f}"
