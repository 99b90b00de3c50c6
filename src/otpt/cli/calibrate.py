"""``otpt calibrate DATA -o cal.json``: fit a calibration on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from otpt.cli import options as o
from otpt.cli.evaluate import Evaluation, RunOptions, say_incomplete
from otpt.cli.terminal import print_json, print_table
from otpt.settings import DEFAULT_METHOD

if TYPE_CHECKING:
    from otpt.calibration import Calibration
    from otpt.runs import Run

_METRICS = {"accuracy": "accuracy %", "nll": "NLL", "ece": "ECE %", "debiased_ece": "debiased ECE %"}


def calibrate(
    dataset: Annotated[str, o.option("a data set as for 'otpt evaluate', or a run folder", metavar="DATA")],
    /,
    *,
    out: Annotated[Path, o.out("the calibration file to write")],
    methods: Annotated[
        str | None,
        o.option(
            "method to calibrate (default: the run's only, or that of 'otpt predict')",
            "--methods",
            "--method",
            metavar="NAME",
        ),
    ] = None,
    maps: Annotated[
        tuple[str, ...] | None,
        o.option("candidates next to identity: temperature, beta, isotonic (the default), bias, vector"),
    ] = None,
    figure: Annotated[Path | None, o.option("reliability before and after: .png, .svg or .pdf", metavar="FILE")] = None,
    raps_penalty: Annotated[float, o.option("penalty of RAPS")] = 0.01,
    raps_ranks: Annotated[int, o.option("classes without that penalty")] = 5,
    name: Annotated[str | None, o.option("data set of a run with several", "--dataset", metavar="NAME")] = None,
    seeds: o.Seed = None,
    folder: Annotated[Path | None, o.option("run folder (default: runs/…)", "--run", metavar="RUN")] = None,
    method: o.MethodOptions = o.MethodOptions(),
    data: o.DataOptions = o.DataOptions(),
    model: o.ModelOptions = o.ModelOptions(),
    run: RunOptions = RunOptions(),
    cache: o.CacheOptions = o.CacheOptions(),
    ray: o.RayOptions = o.RayOptions(),
) -> int:
    """Fit a calibration on labelled images that are not in your test set, and write it with what prediction sets and
    abstention need. 'predict' and 'evaluate' use the file with --calibration. A run needs --save-probabilities."""
    from dataclasses import replace

    from otpt.evaluation.calibrating import calibrate_run
    from otpt.runs import Run

    if figure is not None:
        from otpt.report.figures import check_format

        check_format(figure)
    found: Run
    code = 0
    if (Path(dataset) / "config.json").is_file():
        found, prompt = Run(dataset), method.prompt
    else:
        chosen = method.methods([methods or DEFAULT_METHOD])
        context = method.context_prompt()
        result = Evaluation(
            datasets=[dataset],
            methods=chosen,
            prompts=None if context is None else [context],
            seeds=(seeds or 0,),
            out=folder,
            method=method,
            data=data,
            model=model,
            run=replace(run, save_probabilities=True),
            cache=cache,
            ray=ray,
        )()
        found, prompt, methods = result.run, method.prompt, chosen[0].name
        name, code = str(found.datasets[0].name), say_incomplete(result)
    calibration = calibrate_run(
        found,
        dataset=name,
        method=methods,
        prompt=prompt,
        seed=seeds,
        maps=maps,
        penalty=raps_penalty,
        free_ranks=raps_ranks,
    )
    calibration.write(out)
    if figure is not None:
        _draw(calibration, figure)
    if run.json:
        whole = calibration.as_dict()
        shown = {key: whole[key] for key in ("labels", "map", "cross_validation", "reliability")}
        print_json({"file": str(out), "method": whole["for"]["method"]["name"], **shown})
    else:
        _print(calibration, out, maps)
    return code


def _print(calibration: Calibration, out: Path, maps: tuple[str, ...] | None) -> None:
    from otpt.calibration.maps import DEFAULT, MAPS

    classes = len(calibration.class_names)
    rows = []
    for metric, title in _METRICS.items():
        cells = [title]
        for when in ("before", "after"):
            value, low, high = (_shown(metric, each) for each in calibration.reliability[when][metric])
            cells += [value, f"{low} … {high}"]
        rows.append(cells)
    method = calibration.facts["method"]["name"]
    print_table([f"{method}, {calibration.labels} labels", "before", "95 %", "after", "95 %"], rows)
    tried = ", ".join(f"{name} {nll:.4f}" for name, nll in calibration.cross_validation.items())
    print(f"\nChosen by cross-validated NLL: {calibration.map.words} (of {tried}).")
    for name in maps or DEFAULT:
        if name not in calibration.cross_validation:
            print(f"Not tried: {name}, which needs {MAPS[name].needs(classes)} labels for {classes} classes.")
    print(f"The calibration is in {str(out)!r}; use it with --calibration, on other images than these.")


def _shown(metric: str, value: float) -> str:
    return f"{value:.4f}" if metric == "nll" else f"{100 * value:.2f}"


def _draw(calibration: Calibration, path: Path) -> None:
    from otpt.report.figures import draw_before_after, save, styled

    words = {
        when: f"debiased ECE {100 * own['debiased_ece'][0]:.2f} %, NLL {own['nll'][0]:.4f}"
        for when, own in calibration.reliability.items()
    }
    with styled():
        figure = draw_before_after(calibration.diagram, words, calibration.facts["method"]["name"])
    save(figure, path)
