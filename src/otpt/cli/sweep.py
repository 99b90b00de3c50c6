"""``otpt sweep DATASET --set lambda=0,6,18``: methods under many settings or prompts, in one pass."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from otpt.cli import options as o
from otpt.cli.evaluate import Datasets, Evaluation, RunFolder, RunOptions, print_result
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.prompts import Prompt


def sweep(
    *datasets: Datasets,
    methods: Annotated[tuple[str, ...], o.option("methods to vary", "--methods", "--method", metavar="NAME")] = (
        "o-tpt",
    ),
    prompts: Annotated[
        tuple[str, ...] | None,
        o.option("sentences with {} or words before the class name, @FILE, or imagenet-80", metavar="TEXT"),
    ] = None,
    seeds: o.Seeds = None,
    out: RunFolder = None,
    method: o.MethodOptions = o.MethodOptions(),
    data: o.DataOptions = o.DataOptions(),
    model: o.ModelOptions = o.ModelOptions(),
    run: RunOptions = RunOptions(),
    cache: o.CacheOptions = o.CacheOptions(),
    ray: o.RayOptions = o.RayOptions(),
) -> int:
    """Run methods under all combinations of settings (--set lambda=0,1,2,6,18,54) and under many prompts. Images are
    encoded once, and gradients are shared. 'otpt plot sweep RUN' draws a metric against a setting."""
    from otpt.evaluation.sweeps import parse_values, sweep_method

    if method.prompt is not None:
        raise OtptError("--prompt was given to a sweep; write --prompts.")
    values = parse_values(method.set)
    if not values and prompts is None:
        raise OtptError("Nothing to sweep over: give values after --set, such as lambda=0,1,2,6, or --prompts @FILE.")
    chosen = o.MethodOptions(plugin=method.plugin).methods(methods)
    result = Evaluation(
        datasets=datasets,
        methods=[variant for each in chosen for variant in sweep_method(each, values)],
        prompts=None if prompts is None else [prompt for word in prompts for prompt in _prompts(word)],
        seeds=seeds or (0,),
        out=out,
        method=method,
        data=data,
        model=model,
        run=run,
        cache=cache,
        ray=ray,
        all_tokens=prompts is not None,
    )()
    return print_result(result, as_json=run.json)


def _prompts(word: str) -> list[Prompt]:
    from otpt.evaluation.sweeps import IMAGENET_80, read_templates, template_prompt
    from otpt.prompts import Prompt

    if word.startswith("@"):
        return read_templates(os.path.expanduser(word[1:]))
    if word == IMAGENET_80:
        return read_templates(word)
    return [template_prompt(word) if "{}" in word else Prompt(word)]
