"""``otpt plot KIND RUN -o figure.png``: figures of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from otpt.cli import options as o
from otpt.errors import OtptError, unknown

if TYPE_CHECKING:
    from otpt.backbones import Backbone
    from otpt.report import Results

SIMILARITY = "similarity"


def plot(
    kind: Annotated[str, o.option("reliability, pareto, sweep, similarity …; a wrong name lists all", metavar="KIND")],
    /,
    *runs: o.Runs,
    out: Annotated[Path, o.out("the figure: .png, .svg or .pdf")],
    dpi: Annotated[int, o.option("dots per inch of a PNG")] = 150,
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
    from otpt.report.figures import FIGURES, check_format, draw, draw_similarity, save, styled

    check_format(out)
    if not 20 <= dpi <= 1200:
        raise OtptError(f"--dpi was given {dpi}; expected 20 to 1200.")
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
    results: Results | None, dataset: str | None, root: Path | None, classes: Sequence[str] | None
) -> tuple[str, Sequence[str]]:
    """The title of a class list, and its names."""
    from otpt.data import load_dataset
    from otpt.prompts import check_class_names

    listed = o.read_classes(classes)
    if listed is not None and dataset is None:
        return f"{len(listed)} classes", check_class_names(listed.names)
    if results is not None:
        name = dataset or results.datasets[0]
        if name not in results.datasets:
            raise unknown("data set of the runs", name, results.datasets)
        return name, results.configs_of(name)[0].classes
    if dataset is None:
        raise OtptError("No classes are known; give a run, --datasets NAME or --classes NAME ….")
    found = load_dataset(dataset, root=root, classes=listed)
    return found.name, found.class_names


def _backbone(results: Results | None, model: o.ModelOptions) -> Backbone:
    """The given one, or that of the runs."""
    if results is None:
        return model.load()
    stored = results.runs[0].config.backbone
    backbone = model.load(backbone=model.chosen or stored.name)
    if backbone.fingerprint != stored.fingerprint:
        raise OtptError(f"The weights of {backbone.name!r} are not those of the runs, {stored.name!r}.")
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


def _labels(results: Results | None, dataset: str, prompts: Sequence[str], method: str) -> tuple[dict[str, str], str]:
    """What a run found under each prompt, and what that is."""
    from otpt.report import ResultKey

    labels, more = dict.fromkeys(prompts, ""), ""
    for text in prompts:
        score = None if results is None else results.score(ResultKey(dataset, results.seeds[0], text, method))
        if results is not None and score is not None:
            labels[text] = f"ECE {100 * score['ece']:.2f}, acc. {100 * score['accuracy']:.2f}"
            more = f"; ECE ({results.n_bins} bins) and accuracy of {method}"
    return labels, more
