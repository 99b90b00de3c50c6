"""``otpt certify DATASET``: certified radii of PromptSmooth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from otpt.cli import medical
from otpt.cli import options as o
from otpt.cli.evaluate import Datasets, Evaluation, RunFolder, RunOptions, say_incomplete
from otpt.cli.terminal import print_json, print_table
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.methods import Method

RADII = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
METHODS = ("promptsmooth", "promptsmooth+o-tpt")


def certify(
    *datasets: Datasets,
    methods: Annotated[
        tuple[str, ...], o.option("methods to certify", "--methods", "--method", metavar="NAME")
    ] = METHODS,
    seeds: Annotated[tuple[int, ...], o.option("seeds of the noise", "--seeds", "--seed")] = (3,),
    out: RunFolder = None,
    smoothing: medical.MedicalOptions = medical.MedicalOptions(),
    method: o.MethodOptions = o.MethodOptions(),
    data: o.DataOptions = o.DataOptions(),
    model: o.ModelOptions = o.ModelOptions(),
    run: RunOptions = RunOptions(),
    cache: o.CacheOptions = o.CacheOptions(),
    ray: o.RayOptions = o.RayOptions(),
) -> int:
    """Tune a prompt for each image on noisy copies of it, then certify its class by randomised smoothing: an evaluation
    whose rows also have a radius. An interrupted run resumes when the command is repeated. Exit code 3 if images could
    not be read."""
    from otpt.report.rows import certified_accuracy

    chosen = [_certified(each) for each in method.methods(methods)]
    prompt = method.context_prompt()
    result = Evaluation(
        datasets=datasets,
        methods=chosen,
        prompts=None if prompt is None else [prompt],
        seeds=seeds,
        out=out,
        method=method,
        data=data,
        model=model,
        run=run,
        cache=cache,
        ray=ray,
        medical=smoothing,
    )()
    found = {each.name: certified_accuracy(result.run, each.name, RADII) for each in chosen}
    if run.json:
        rows = [
            {
                "method": name,
                "certified_accuracy": {f"{r:g}": value for r, value in own.items()},
                "abstained": abstained,
            }
            for name, (own, abstained) in found.items()
        ]
        print_json({"run": str(result.run.folder), "methods": rows})
    else:
        print_table(
            ["certified accuracy %", *(f"r ≥ {radius:g}" for radius in RADII), "abstained %"],
            [
                [name, *(_percent(own[radius]) for radius in RADII), _percent(abstained)]
                for name, (own, abstained) in found.items()
            ],
        )
        print(f"Certificates are in the rows of {str(result.run.folder)!r}, columns 'radius' and 'lower_bound'.")
    return say_incomplete(result)


def _certified(method: Method) -> Method:
    """The method with the votes and the radius of a certificate."""
    if method.adapt != "promptsmooth":
        raise OtptError(f"Method {method.name!r} has no certificate; expected {' or '.join(METHODS)}.")
    if method.aggregate == "certificate":
        return method
    return replace(method, name=f"{method.name}+certificate", aggregate="certificate")


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.2f}"
