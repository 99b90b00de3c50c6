"""``otpt calibrate DATA -o cal.json``: fit a calibration on labelled images."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

from otpt.calibration import Calibration
from otpt.calibration.maps import DEFAULT, MAPS
from otpt.cli import options as o
from otpt.cli.evaluate import EvaluationOptions, RunOptions, say_incomplete
from otpt.cli.terminal import note, print_json, print_table, show
from otpt.data.label_studio import is_ranked
from otpt.errors import OtptError
from otpt.evaluation import calibrate_run
from otpt.methods import DEFAULT_METHOD, MULTI_LABEL
from otpt.report.figures import save
from otpt.report.pictures import draw_calibration
from otpt.runs import Run

_HARDEST = (
    "the labelled images were ranked by uncertainty, so they are the hardest ones: coverage and risk do not hold for "
    "new images; draw the images to label for a calibration at random."
)


@o.option_group("Options")
class FitOptions(o.Options):
    """How the calibration is fitted."""

    maps: Annotated[
        o.Several, o.option("candidates next to identity: temperature, beta, isotonic (the default), bias, vector")
    ] = None
    figure: Annotated[Path | None, o.figure("reliability before and after: .png, .svg or .pdf", "--figure")] = None
    raps_penalty: Annotated[float, o.option("penalty of RAPS")] = 0.01
    raps_ranks: Annotated[int, o.option("classes without that penalty")] = 5


def calibrate(
    dataset: Annotated[str, o.option("a data set as for 'otpt evaluate', or a run folder", metavar="DATA")],
    /,
    *,
    out: Annotated[Path, o.out("the calibration file to write")],
    methods: Annotated[
        str | None, o.methods("method to calibrate (default: the run's only method, or the default of 'otpt predict')")
    ] = None,
    fit: FitOptions = FitOptions(),
    name: Annotated[
        str | None, o.option("data set of a run with several", "--datasets", "--dataset", metavar="NAME")
    ] = None,
    folder: Annotated[Path | None, o.option("run folder (default: runs/…)", "--run", metavar="RUN")] = None,
    multi_label: Annotated[
        bool, o.option("DATA is a table with the columns path and labels, separated by semicolons")
    ] = False,
    options: EvaluationOptions = EvaluationOptions(),
) -> int:
    """Fit a calibration on labelled images that are not in your test set, and write it with what prediction sets and
    abstention need. 'predict' and 'evaluate' use the file with --calibration. A run needs --save-probabilities.

    otpt calibrate my-images/ --methods confident-half --out cal.json
    otpt calibrate runs/main --methods o-tpt --out cal.json --figure cal.png
    """
    run = Run(dataset) if (Path(dataset) / "config.json").is_file() else None
    multi_label = multi_label or (run is None and options.data.asks_one_class())
    several_labels = multi_label or (run is not None and run.multi_label)
    if several_labels and fit != FitOptions():
        raise OtptError("--figure, --maps and --raps-… need one label per image; leave them out.")
    if len(options.seeds or ()) > 1:
        raise OtptError(f"--seeds was given {len(options.seeds or ())} seeds; a calibration is fitted on one.")
    code = 0
    if run is not None:
        _refuse_options(options, folder, multi_label)
    else:
        if name is not None:
            raise OtptError(f"--datasets was given {name!r}, but it selects a data set of a run; leave it out.")
        chosen = options.method.methods([methods or (MULTI_LABEL if multi_label else DEFAULT_METHOD)])
        options = replace(options, run=replace(options.run, save_probabilities=not multi_label))
        result = options.evaluate([dataset], chosen, out=folder, multi_label=multi_label)
        run = result.run
        methods = chosen[0].name
        code = say_incomplete(result)
        name = run.datasets[0].name
    calibration = calibrate_run(
        run,
        dataset=name,
        method=methods,
        prompt=options.method.prompt,
        seed=options.seeds[0] if options.seeds else None,
        maps=fit.maps,
        penalty=fit.raps_penalty,
        free_ranks=fit.raps_ranks,
    )
    calibration.write(out)
    if is_ranked(Path(dataset)):
        note(_HARDEST)
    if fit.figure is not None:
        save(draw_calibration(calibration), fit.figure)
    if options.run.json:
        whole = calibration.as_dict()
        shown = {key: whole[key] for key in ("labels", "map", "cross_validation", "reliability")}
        print_json({"file": str(out), "method": calibration.method, **shown})
    else:
        _print(calibration, out, fit.maps)
    return code


def _refuse_options(options: EvaluationOptions, folder: Path | None, multi_label: bool) -> None:
    """Raise for an option of an evaluation, which a finished run does not need."""
    used = EvaluationOptions(
        seeds=options.seeds, method=o.MethodOptions(prompt=options.method.prompt), run=RunOptions(json=options.run.json)
    )
    unused = [name for name, value in (("run", folder), ("multi-label", multi_label)) if value]
    for group in fields(options):
        ours, theirs = getattr(options, group.name), getattr(used, group.name)
        if isinstance(ours, o.Options) and ours != theirs:
            unused += [name for name, value in ours.given().items() if theirs.given().get(name) != value]
    if unused:
        raise OtptError(
            f"--{unused[0].replace('_', '-')} was given, but the run is finished; give it to 'otpt evaluate', or leave "
            "it out."
        )


def _print(calibration: Calibration, out: Path, maps: o.Several) -> None:
    classes = len(calibration.class_names)
    rows = [[metric.title, *metric.cells()] for metric in calibration.held_out]
    heading = f"{calibration.method}, {calibration.labels} labels"
    print_table([heading, "before", "95 %", "after", "95 %"], rows)
    tried = ", ".join(f"{name} {nll:.4f}" for name, nll in calibration.cross_validation.items())
    show()
    show(f"Chosen by cross-validated NLL: {calibration.map.words} (of {tried}).")
    for name in () if calibration.multi_label else maps or DEFAULT:
        if name not in calibration.cross_validation:
            show(f"Not tried: {name}, which needs {MAPS[name].needs(classes)} labels for {classes} classes.")
    show(f"The calibration is in {str(out)!r}; use it with --calibration, on other images than these.")
