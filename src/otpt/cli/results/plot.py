"""``otpt plot KIND RUNS… -o FILE``: every figure of the paper from your own runs, as PNG, SVG or PDF."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.notes import tell
from otpt.cli.options.class_names import add_classes_option, chosen_classes
from otpt.cli.options.models import DEFAULT_BACKBONE, add_model_options, chosen_backbone
from otpt.cli.options.scoring import add_bins_options
from otpt.cli.options.spellings import (
    add_methods_option,
    add_out_option,
    add_seeds_option,
    add_threads_option,
    use_threads,
)
from otpt.cli.options.text_files import read_lines
from otpt.errors import OtptError, unknown
from otpt.report.figures import FIGURES, THEMES
from otpt.runs.growing import CONFIG

if TYPE_CHECKING:
    from otpt.backbones import Backbone
    from otpt.report import Results

OF_THE_RUNS = "that of the runs"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``plot`` with a sub-command for each kind of figure."""
    parser.description = "Draw a figure from run folders: PNG, SVG or PDF by the file's suffix."
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True, parser_class=type(parser))
    for name, kind in FIGURES.items():
        own = kinds.add_parser(name, help=kind.summary, description=f"{kind.summary.capitalize()}.")
        own.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="run folders")
        _add_output_options(own)
        own.add_argument("--datasets", nargs="+", metavar="NAME", help="only these data sets of the runs")
        add_methods_option(own, default=None, words="only these methods of the runs")
        add_seeds_option(own, default=None, words="only these seeds of the views")
        add_bins_options(own)
        if name == "sweep":
            own.add_argument("--metric", default="ece", metavar="NAME", help="(default: %(default)s)")
            own.add_argument("--setting", metavar="NAME", help="swept setting to show (default: the first)")
        if name == "templates":
            own.add_argument(
                "--best", type=int, default=10, metavar="N", help="templates of highest accuracy to mark (default: 10)"
            )
        else:
            own.add_argument("--prompt", metavar="WORDS", help="prompt to show (default: the first of each data set)")
        own.set_defaults(run=run)
    _add_similarity(kinds)


def run(options: argparse.Namespace) -> int:
    """Draw a figure from runs and say where it is."""
    from otpt.report import open_results
    from otpt.report.figures import check_format, draw, save

    check_format(options.out)
    results = open_results(options.folders, n_bins=options.bins, side=options.side, seeds=options.seeds)
    extra = {"templates": ("best",), "sweep": ("metric", "setting")}.get(options.kind, ())
    figure = draw(
        options.kind,
        results,
        datasets=options.datasets,
        methods=options.methods,
        prompt=getattr(options, "prompt", None),
        theme=options.theme,
        **{name: getattr(options, name) for name in extra},
    )
    save(figure, options.out, dpi=options.dpi)
    print(f"The figure is in {str(options.out)!r}.")
    return 0


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    add_out_option(parser, metavar="FILE", words="the figure: .png, .svg or .pdf", required=True)
    parser.add_argument(
        "--dpi", type=_resolution, default=150, metavar="N", help="dots per inch of a PNG (default: 150)"
    )
    parser.add_argument("--theme", choices=THEMES, default=THEMES[0], help="colours (default: %(default)s)")


def _resolution(text: str) -> int:
    value = int(text)
    if not 20 <= value <= 1200:
        raise argparse.ArgumentTypeError(f"{value} dots per inch; expected 20 to 1200")
    return value


def _add_similarity(kinds: Any) -> None:
    summary = "densities of the cosine similarity of text features for several prompts"
    parser: argparse.ArgumentParser = kinds.add_parser(
        "similarity",
        help=summary,
        description=f"{summary.capitalize()}: class names and prompts of a run, with the ECE of each in the legend; or "
        "any class names and prompts, without a run.",
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="RUN", help="run folders (optional)")
    _add_output_options(parser)
    parser.add_argument(
        "--dataset", metavar="NAME", help="data set whose classes to use (default: the first of the runs)"
    )
    parser.add_argument("--data", type=Path, metavar="ROOT", help="folder with the data sets")
    add_classes_option(parser, words="names, a comma list or @FILE, in place of those of a data set")
    parser.add_argument(
        "--prompts",
        nargs="+",
        metavar="WORDS",
        help="contexts, such as 'a photo of [CLS] in the wild', or @FILE with one per line",
    )
    add_methods_option(
        parser,
        default=["zero-shot"],
        words="method whose ECE to show (default: zero-shot)",
        dest="method",
        several=False,
    )
    words = "seed of the views of that ECE (default: the first of the runs)"
    add_seeds_option(parser, default=None, words=words, dest="seed", several=False)
    add_threads_option(parser)
    add_model_options(parser)
    parser.set_defaults(run=run_similarity, backbone=OF_THE_RUNS)


def run_similarity(options: argparse.Namespace) -> int:
    """Encode the text features of each prompt and draw their similarities."""
    from otpt.report import open_results
    from otpt.report.figures import check_format, draw_similarity, save, styled

    check_format(options.out)
    use_threads(options.threads)
    _take_back_runs(options)
    seeds = None if options.seed is None else [options.seed]
    results = open_results(options.folders, seeds=seeds) if options.folders else None
    dataset, names = _class_names(options, results)
    given = [
        text
        for word in options.prompts or ()
        for text in (read_lines(word[1:], "file of prompts") if word.startswith("@") else [word])
    ]
    words = given or (results.prompts_of(dataset) if results and dataset in results.datasets else None)
    if not words:
        raise OtptError("No prompt is known; give some after --prompts, such as 'a photo of a' 'an example of'.")
    backbone = _backbone(options, results)
    cosines = {prompt: _cosines(backbone, names, prompt) for prompt in words}
    labels = {prompt: _label(results, dataset, prompt, options.method) for prompt in words}
    scored = (
        f"; ECE ({results.n_bins} bins) and accuracy of {options.method}" if results and any(labels.values()) else ""
    )
    with styled(options.theme):
        note = f"{backbone.name}, {len(names)} classes{scored}"
        figure = draw_similarity(cosines, labels, title=dataset, note=note)
    save(figure, options.out, dpi=options.dpi)
    print(f"The figure is in {str(options.out)!r}.")
    return 0


def _take_back_runs(options: argparse.Namespace) -> None:
    """Run folders that ``--classes`` swallowed, since it takes all words up to the next option."""
    runs = [word for word in options.classes or () if os.path.isfile(Path(word) / CONFIG)]
    if runs:
        options.folders += map(Path, runs)
        options.classes = [word for word in options.classes if word not in runs] or None
        tell(f"{', '.join(map(repr, runs))} after --classes: taken as run, not as class name.")


def _class_names(options: argparse.Namespace, results: Results | None) -> tuple[str, Sequence[str]]:
    """Whose classes are shown, and their names."""
    from otpt.data import load_dataset
    from otpt.prompts import check_class_names

    words: list[str] = options.classes or []
    listed = chosen_classes(options)
    if listed is not None and options.dataset is None:
        file = Path(words[0].removeprefix("@"))
        title = file.name if len(words) == 1 and os.path.isfile(file) else f"{len(listed)} classes"
        return title, check_class_names(listed.names)
    if results is not None and (options.dataset is None or options.dataset in results.datasets):
        dataset = options.dataset or results.datasets[0]
        return dataset, results.config_of(dataset)["classes"]
    if options.dataset is None:
        raise OtptError("No classes are known; give a run, --dataset NAME or --classes NAME ….")
    if results is not None:
        raise unknown("data set of the runs", options.dataset, results.datasets)
    found = load_dataset(options.dataset, root=options.data, classes=listed)
    return found.name, found.class_names


def _backbone(options: argparse.Namespace, results: Results | None) -> Backbone:
    """The one that was asked for, or else that of the runs."""
    given = None if options.backbone == OF_THE_RUNS else options.backbone
    if results is None:
        return chosen_backbone(options, given or DEFAULT_BACKBONE)
    stored = results.runs[0].config["backbone"]
    backbone = chosen_backbone(options, given or stored["name"])
    if backbone.fingerprint != stored["fingerprint"]:
        raise OtptError(
            f"The backbone {backbone.name!r} is not the one of the runs, {stored['name']!r}: its weights differ; give "
            "the runs' own with --backbone, or leave the runs out."
        )
    return backbone


def _cosines(backbone: Backbone, names: Sequence[str], words: str) -> Any:
    """The similarities of all pairs of classes under a prompt."""
    from otpt.prompts import Prompt, prompt_encoder, tokenize_prompts
    from otpt.prompts.tokens import whole_context
    from otpt.report.figures import pairwise_cosines

    tokens = tokenize_prompts(backbone.text, names, whole_context(backbone.text, Prompt(words)))
    context = tokens.start.to(device=backbone.device, dtype=backbone.dtype)
    features = prompt_encoder(backbone.text, tokens).encode(context[None])[0]
    return pairwise_cosines(features.double().cpu().numpy())


def _label(results: Results | None, dataset: str, words: str, method: str) -> str:
    """ECE and accuracy of the method with this prompt under the first seed, if the runs have it."""
    from otpt.metrics import percent
    from otpt.report import ResultKey

    score = None if results is None else results.score(ResultKey(dataset, results.seeds[0], words, method))
    return "" if score is None else f"ECE {percent(score['ece'])}, acc. {percent(score['accuracy'])}"
