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
Kind = Annotated[
    str, o.option("reliability, pareto, sweep, templates, similarity …; a wrong name lists all", metavar="KIND")
]


def plot(
    kind: Kind,
    /,
    *runs: o.Runs,
    out: Annotated[Path, o.out("the figure: .png, .svg or .pdf")],
    dpi: Annotated[int, o.option("dots per inch of a PNG")] = 150,
    theme: Annotated[Literal["light", "dark"], o.option("colours")] = "light",
    datasets: o.ChosenDatasets = None,
    methods: o.ChosenMethods = None,
    seeds: o.ChosenSeeds = None,
    prompt: Annotated[str | None, o.option("prompt to show (default: the first of each data set)")] = None,
    bins: o.Bins = None,
    side: o.Side = None,
    metric: Annotated[str, o.option("'sweep': metric to draw", metavar="NAME")] = "ece",
    setting: Annotated[str | None, o.option("'sweep': setting to draw it against (default: the first)")] = None,
    best: Annotated[int, o.option("'templates': number of the most accurate to mark")] = 10,
    prompts: Annotated[
        tuple[str, ...] | None, o.option("'similarity': contexts, or @FILE with one per line", metavar="WORDS")
    ] = None,
    classes: o.Classes = None,
    data: o.Data = None,
    model: o.ModelOptions = o.ModelOptions(backbone=""),
) -> int:
    """Draw a figure of runs. 'similarity' shows cosine similarities of text features, of a run or of any --classes and
    --prompts without one."""
    from otpt.report import open_results
    from otpt.report.figures import FIGURES, check_format, draw, save

    check_format(out)
    if not 20 <= dpi <= 1200:
        raise OtptError(f"--dpi was given {dpi}; expected 20 to 1200.")
    if kind != SIMILARITY and kind not in FIGURES:
        raise unknown("kind of figure", kind, [*FIGURES, SIMILARITY])
    if kind != SIMILARITY or runs:
        o.check_run_folders(runs)
    results = open_results(runs, n_bins=bins, side=side, seeds=seeds) if runs else None
    if kind == SIMILARITY:
        name = datasets[0] if datasets else None
        figure = _similarity(results, name, data, classes, prompts, (methods or ("zero-shot",))[0], model, theme)
    else:
        assert results is not None
        own = {"templates": {"best": best}, "sweep": {"metric": metric, "setting": setting}}.get(kind, {})
        figure = draw(kind, results, datasets=datasets, methods=methods, prompt=prompt, theme=theme, **own)
    save(figure, out, dpi=dpi)
    print(f"The figure is in {str(out)!r}.")
    return 0


def _similarity(
    results: Results | None,
    dataset: str | None,
    root: Path | None,
    classes: Sequence[str] | None,
    prompts: Sequence[str] | None,
    method: str,
    model: o.ModelOptions,
    theme: str,
) -> Any:
    from otpt.report import ResultKey
    from otpt.report.figures import draw_similarity, styled

    title, names = _class_names(results, dataset, root, classes)
    lines = [o.read_lines(word[1:], "file of prompts") if word.startswith("@") else [word] for word in prompts or ()]
    words = [text for own in lines for text in own]
    if not words and results is not None and title in results.datasets:
        words = list(results.prompts_of(title))
    if not words:
        raise OtptError("No prompt is known; give some after --prompts, such as 'a photo of a' 'an example of'.")
    backbone = _backbone(results, model)
    cosines, labels = {}, {}
    for text in words:
        cosines[text] = _cosines(backbone, names, text)
        score = None if results is None else results.score(ResultKey(title, results.seeds[0], text, method))
        labels[text] = "" if score is None else f"ECE {100 * score['ece']:.2f}, acc. {100 * score['accuracy']:.2f}"
    more = f"; ECE ({results.n_bins} bins) and accuracy of {method}" if results and any(labels.values()) else ""
    with styled(theme):
        return draw_similarity(cosines, labels, title=title, note=f"{backbone.name}, {len(names)} classes{more}")


def _class_names(
    results: Results | None, dataset: str | None, root: Path | None, classes: Sequence[str] | None
) -> tuple[str, Sequence[str]]:
    """The title of a class list, and its names."""
    from otpt.data import load_dataset
    from otpt.prompts import check_class_names

    listed = o.read_classes(classes)
    if listed is not None and dataset is None:
        return f"{len(listed)} classes", check_class_names(listed.names)
    if results is not None and (dataset is None or dataset in results.datasets):
        name = dataset or results.datasets[0]
        return name, results.config_of(name).classes
    if dataset is None:
        raise OtptError("No classes are known; give a run, --datasets NAME or --classes NAME ….")
    if results is not None:
        raise unknown("data set of the runs", dataset, results.datasets)
    found = load_dataset(dataset, root=root, classes=listed)
    return found.name, found.class_names


def _backbone(results: Results | None, model: o.ModelOptions) -> Backbone:
    """The given one, or that of the runs."""
    if results is None:
        return model.load(model.backbone or o.DEFAULT_BACKBONE)
    stored = results.runs[0].config.backbone
    backbone = model.load(model.backbone or stored.name)
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
