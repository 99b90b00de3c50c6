"""``otpt plot KIND RUN -o figure.png``: figures of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import validators

import otpt
from otpt.cli import options as o
from otpt.errors import OtptError, unknown

SIMILARITY = "similarity"


def plot(
    kind: Annotated[str, o.option("reliability, pareto, sweep, similarity …; a wrong name lists all", metavar="KIND")],
    /,
    *runs: o.Runs,
    out: Annotated[Path, o.figure("the figure: .png, .svg or .pdf", "--out", "-o")],
    dpi: Annotated[int, o.option("dots per inch of a PNG", validator=validators.Number(gte=20, lte=1200))] = 150,
    theme: Annotated[Literal["light", "dark"], o.option("colours")] = "light",
    datasets: o.ChosenDatasets = None,
    prompt: o.ChosenPrompt = None,
    metric: Annotated[str, o.option("'sweep': metric to draw", metavar="NAME")] = "ece",
    setting: Annotated[str | None, o.option("'sweep': setting to draw it against (default: the first)")] = None,
    best: Annotated[int, o.option("'templates': number of the most accurate to mark")] = 10,
    prompts: Annotated[
        o.Several, o.option("'similarity': contexts, or @FILE with one per line", metavar="WORDS")
    ] = None,
    classes: o.Classes = None,
    data: o.Data = None,
    which: o.ResultOptions = o.ResultOptions(),
    model: o.ModelOptions = o.ModelOptions(),
) -> int:
    """Draw a figure of runs. 'similarity' shows cosine similarities of text features, of a run or of any --classes and
    --prompts without one.

    otpt plot reliability runs/main --out reliability.png
    otpt plot sweep runs/sweep --metric ece --out sweep.svg
    otpt plot similarity --classes cat dog bird --prompts "a photo of a" --out similarity.png
    """
    from otpt.report.figures import FIGURES, draw, draw_similarity, save, styled

    if kind != SIMILARITY and kind not in FIGURES:
        raise unknown("kind of figure", kind, [*FIGURES, SIMILARITY])
    results = which.open(runs) if runs or kind != SIMILARITY else None
    if kind == SIMILARITY or results is None:
        title, names = _class_names(results, datasets[0] if datasets else None, data, classes)
        words: Sequence[str] = o.read_lines(prompts or (), "file of prompts")
        if not words and results is not None and title in results.datasets:
            words = results.prompts_of(title)
        if not words:
            raise OtptError("No prompt is known; give some after --prompts, such as 'a photo of a' 'an example of'.")
        backbone = _backbone(results, model)
        cosines = {text: _cosines(backbone, names, text) for text in words}
        labels, more = _labels(results, title, words, (which.methods or ("zero-shot",))[0])
        with styled(theme):
            text = f"{backbone.name}, {len(names)} classes{more}"
            figure = draw_similarity(cosines, labels, title=title, note=text)
    else:
        own: dict[str, Any] = {"templates": {"best": best}, "sweep": {"metric": metric, "setting": setting}}
        shown: dict[str, Any] = {"datasets": datasets, "methods": which.methods, "prompt": prompt, "theme": theme}
        figure = draw(kind, results, **shown, **own.get(kind, {}))
    save(figure, out, dpi=dpi)
    print(f"The figure is in {str(out)!r}.")
    return 0


def _class_names(
    results: otpt.report.Results | None, dataset: str | None, root: Path | None, classes: Sequence[str] | None
) -> tuple[str, Sequence[str]]:
    """Return a title and the class names."""
    listed = o.read_classes(classes)
    if listed is not None and dataset is None:
        return f"{len(listed)} classes", otpt.prompts.check_class_names(listed.names)
    if results is not None:
        name = dataset or results.datasets[0]
        if name not in results.datasets:
            raise unknown("data set of the runs", name, results.datasets)
        return name, results.configs_of(name)[0].classes
    if dataset is None:
        raise OtptError("No classes are known; give a run, --datasets NAME or --classes NAME ….")
    found = otpt.data.load_dataset(dataset, root=root, classes=listed)
    return found.name, found.class_names


def _backbone(results: otpt.report.Results | None, model: o.ModelOptions) -> otpt.Backbone:
    """Load the given model, or that of the runs."""
    if results is None:
        return model.load()
    stored = results.runs[0].config.backbone
    backbone = model.load(backbone=model.chosen or stored.name)
    if backbone.fingerprint != stored.fingerprint:
        raise OtptError(f"The weights of {backbone.name!r} are not those of the runs, {stored.name!r}.")
    return backbone


def _cosines(backbone: otpt.Backbone, names: Sequence[str], words: str) -> Any:
    """Compute the similarities of all pairs of classes under a prompt."""
    from otpt.prompts.tokens import whole_context
    from otpt.report.figures import pairwise_cosines

    tokens = otpt.prompts.tokenize_prompts(backbone.text, names, whole_context(backbone.text, otpt.Prompt(words)))
    context = tokens.start.to(device=backbone.device, dtype=backbone.dtype)
    features = otpt.prompts.prompt_encoder(backbone.text, tokens).encode(context[None])[0]
    return pairwise_cosines(features.double().cpu().numpy())


def _labels(
    results: otpt.report.Results | None, dataset: str, prompts: Sequence[str], method: str
) -> tuple[dict[str, str], str]:
    """Return the run's metrics under each prompt, and a note that names them."""
    labels, more = dict.fromkeys(prompts, ""), ""
    for text in prompts:
        key = otpt.report.ResultKey(dataset, results.seeds[0], text, method) if results else None
        score = results.score(key) if results and key else None
        if results and score is not None:
            labels[text] = f"ECE {100 * score['ece']:.2f}, acc. {100 * score['accuracy']:.2f}"
            more = f"; ECE ({results.n_bins} bins) and accuracy of {method}"
    return labels, more
