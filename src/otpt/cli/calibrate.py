"""``otpt calibrate DATA -o cal.json``: fit a calibration on labelled images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import otpt
from otpt.cli import options as o
from otpt.cli.evaluate import EvaluationOptions, say_incomplete
from otpt.cli.terminal import print_json, print_table
from otpt.errors import OtptError
from otpt.settings import DEFAULT_METHOD, MULTI_LABEL


def calibrate(
    dataset: Annotated[str, o.option("a data set as for 'otpt evaluate', or a run folder", metavar="DATA")],
    /,
    *,
    out: Annotated[Path, o.out("the calibration file to write")],
    methods: Annotated[
        str | None, o.methods("method to calibrate (default: the run's only method, or the default of 'otpt predict')")
    ] = None,
    maps: Annotated[
        o.Several, o.option("candidates next to identity: temperature, beta, isotonic (the default), bias, vector")
    ] = None,
    figure: Annotated[Path | None, o.figure("reliability before and after: .png, .svg or .pdf", "--figure")] = None,
    raps_penalty: Annotated[float, o.option("penalty of RAPS")] = 0.01,
    raps_ranks: Annotated[int, o.option("classes without that penalty")] = 5,
    name: Annotated[str | None, o.option("data set of a run with several", "--dataset", metavar="NAME")] = None,
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
    run = otpt.runs.Run(dataset) if (Path(dataset) / "config.json").is_file() else None
    if (multi_label or (run and run.multi_label)) and (figure or maps):
        raise OtptError("--figure and --maps need one label per image; leave them out.")
    if len(options.seeds or ()) > 1:
        raise OtptError(f"--seeds was given {len(options.seeds or ())} seeds; a calibration is fitted on one.")
    code = 0
    if run is None:
        chosen = options.method.methods([methods or (MULTI_LABEL if multi_label else DEFAULT_METHOD)])
        options = replace(options, run=replace(options.run, save_probabilities=not multi_label))
        several: dict[str, Any] = {"multi_label": True} if multi_label else {}
        result = options.evaluate([dataset], chosen, out=folder, **several)
        run, methods, code = result.run, chosen[0].name, say_incomplete(result)
        name = run.datasets[0].name
    calibration = otpt.evaluation.calibrate_run(
        run,
        dataset=name,
        method=methods,
        prompt=options.method.prompt,
        seed=options.seeds[0] if options.seeds else None,
        maps=maps,
        penalty=raps_penalty,
        free_ranks=raps_ranks,
    )
    calibration.write(out)
    if figure is not None:
        _draw(calibration, figure)
    if options.run.json:
        whole = calibration.as_dict()
        shown = {key: whole[key] for key in ("labels", "map", "cross_validation", "reliability")}
        print_json({"file": str(out), "method": calibration.method, **shown})
    else:
        _print(calibration, out, maps)
    return code


def _print(calibration: otpt.calibration.Calibration, out: Path, maps: o.Several) -> None:
    from otpt.calibration.maps import DEFAULT, MAPS

    classes = len(calibration.class_names)
    rows = [[metric.title, *metric.cells()] for metric in calibration.held_out]
    heading = f"{calibration.method}, {calibration.labels} labels"
    print_table([heading, "before", "95 %", "after", "95 %"], rows)
    tried = ", ".join(f"{name} {nll:.4f}" for name, nll in calibration.cross_validation.items())
    print(f"\nChosen by cross-validated NLL: {calibration.map.words} (of {tried}).")
    for name in () if calibration.multi_label else maps or DEFAULT:
        if name not in calibration.cross_validation:
            print(f"Not tried: {name}, which needs {MAPS[name].needs(classes)} labels for {classes} classes.")
    print(f"The calibration is in {str(out)!r}; use it with --calibration, on other images than these.")


def _draw(calibration: otpt.calibration.Calibration, path: Path) -> None:
    from otpt.report.figures import draw_before_after, save, styled

    metrics = {metric.name: metric.words() for metric in calibration.held_out}
    ece, nll = ("label_ece", "label_nll") if calibration.multi_label else ("debiased_ece", "nll")
    words = {
        "before": f"{metrics[ece][0]}, {metrics[nll][0]}",
        "after": f"{metrics[ece][1]}, {metrics[nll][1]}",
    }
    with styled():
        figure = draw_before_after(calibration.diagram, words, calibration.method)
    save(figure, path)
