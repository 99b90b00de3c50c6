"""``otpt calibrate DATA --out cal.json``: a calibration file from labelled images, or from a run on them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.evaluating import evaluate
from otpt.cli.options.inits import add_init_options
from otpt.cli.options.methods import chosen_methods, load_plugins
from otpt.cli.options.models import add_model_options
from otpt.cli.options.spellings import add_methods_option, add_out_option, add_settings_option
from otpt.cli.terminal import Column, print_columns
from otpt.errors import OtptError
from otpt.runs.growing import CONFIG

if TYPE_CHECKING:
    from otpt.calibration import Calibration
    from otpt.methods import Method
    from otpt.runs import Run

_METRICS = ("accuracy", "nll", "ece", "debiased_ece")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``calibrate``."""
    from otpt.settings import DEFAULT_METHOD

    parser.description = (
        "Fit a calibration on labelled images that are not in your test set, and write it with what prediction sets "
        "and abstention need. DATA is a data set as for 'otpt evaluate', or a run with all probabilities, "
        "from which nothing is computed again. 'predict' and 'evaluate' take the file with --calibration."
    )
    parser.add_argument("data_set", metavar="DATA", help="a data set as for 'otpt evaluate', or a run folder")
    add_out_option(parser, metavar="FILE", words="the file to write", dest="file", required=True)
    words = f"to calibrate (default: {DEFAULT_METHOD}, or the run's only)"
    add_methods_option(parser, default=None, words=words, dest="method", several=False)
    parser.add_argument("--dataset", metavar="NAME", help="of a run with several")
    parser.add_argument(
        "--maps",
        nargs="+",
        metavar="NAME",
        help="candidates beside identity: temperature, beta, isotonic (the default), bias and vector, which may change "
        "labels",
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="reliability before and after, .png, .svg or .pdf")
    parser.add_argument("--raps-penalty", type=float, default=0.01, metavar="X", help="of RAPS (default: %(default)s)")
    parser.add_argument(
        "--raps-ranks", type=int, default=5, metavar="K", help="classes without that penalty (default: %(default)s)"
    )
    add_settings_option(parser, "override hyper-parameters")
    evaluate.add_prompt_option(parser)
    evaluate.add_data_options(parser)
    add_init_options(parser)
    evaluate.add_run_options(parser, folder="--run")
    add_model_options(parser)
    parser.set_defaults(run=run, seeds=None)  # of a run, its first


def run(options: argparse.Namespace) -> int:
    """Evaluate what is missing, fit, write, print."""
    from otpt.settings import DEFAULT_METHOD

    if options.figure is not None:
        from otpt.report.figures import check_format

        check_format(options.figure)
    if options.seeds is not None and len(options.seeds) > 1:
        raise OtptError("Several seeds were given; a calibration uses each image once, so expected one seed.")
    if os.path.isfile(Path(options.data_set) / CONFIG):
        from otpt.runs import Run

        _from_run(Run(options.data_set), options)
        return 0
    options.seeds = options.seeds or [0]
    load_plugins(options)
    options.datasets, options.methods = [options.data_set], [options.method or DEFAULT_METHOD]
    options.save_probabilities = True
    methods = chosen_methods(options)

    def calibrate(found: Run, methods: Sequence[Method], *, as_json: bool) -> None:
        options.method, options.dataset = methods[0].name, str(found.datasets[0]["name"])
        _from_run(found, options)

    return evaluate.run_evaluation(options, methods, evaluate.chosen_prompts(options), print_found=calibrate)


def _from_run(found: Run, options: argparse.Namespace) -> None:
    from otpt.evaluation.calibrating import calibrate_run

    calibration = calibrate_run(
        found,
        dataset=options.dataset,
        method=options.method,
        prompt=options.prompt,
        seed=options.seeds[0] if options.seeds else None,
        maps=options.maps,
        penalty=options.raps_penalty,
        free_ranks=options.raps_ranks,
    )
    calibration.write(options.file)
    if options.figure is not None:
        _draw(calibration, options.figure)
    if options.json:
        print(json.dumps(_data(calibration, options.file), indent=2, ensure_ascii=False))
    else:
        _print(calibration, options)


def _data(calibration: Calibration, path: Path) -> dict[str, object]:
    whole = calibration.as_dict()
    shown = ("labels", "map", "cross_validation", "reliability")
    return {"file": str(path), "method": whole["for"]["method"]["name"], **{key: whole[key] for key in shown}}


def _print(calibration: Calibration, options: argparse.Namespace) -> None:
    from otpt.calibration.maps import DEFAULT, MAPS
    from otpt.metrics import METRICS

    method, classes = calibration.facts["method"]["name"], len(calibration.class_names)
    columns = [
        Column(f"{method}, {calibration.labels} labels", [METRICS[name].heading for name in _METRICS], is_name=True)
    ]
    for when in ("before", "after"):
        shown = [[_shown(name, each) for each in calibration.reliability[when][name]] for name in _METRICS]
        columns.append(Column(when, [value for value, _, _ in shown]))
        columns.append(Column("95 %", [f"{low} … {high}" for _, low, high in shown]))
    print_columns(columns, width=120)
    print()
    tried = ", ".join(f"{name} {nll:.4f}" for name, nll in calibration.cross_validation.items())
    print(f"Chosen by cross-validated NLL: {calibration.map.words} (of {tried}).")
    lacking = [name for name in options.maps or DEFAULT if name not in calibration.cross_validation]
    for name in lacking:
        print(f"Not tried: {name}, which needs {MAPS[name].needs(classes)} labels for {classes} classes.")
    print(f"The calibration is in {str(options.file)!r}; use it with --calibration, on other images than these.")


def _shown(metric: str, value: float) -> str:
    from otpt.metrics import percent

    return f"{value:.4f}" if metric == "nll" else percent(value)


def _draw(calibration: Calibration, path: Path) -> None:
    from otpt.metrics import percent
    from otpt.report.figures import draw_before_after, save, styled

    words = {
        when: f"debiased ECE {percent(own['debiased_ece'][0])} %, NLL {own['nll'][0]:.4f}"
        for when, own in calibration.reliability.items()
    }
    with styled():
        figure = draw_before_after(calibration.diagram, words, calibration.facts["method"]["name"])
    save(figure, path)
