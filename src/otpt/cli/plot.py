"""``otpt plot``: figures of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from cyclopts import validators
from matplotlib.figure import Figure

from otpt.backbones import Backbone, text_encoder
from otpt.cli import options as o
from otpt.data import load_dataset
from otpt.errors import OtptError, unknown
from otpt.prompts import Prompt, check_class_names, prompt_encoder, tokenize_prompts
from otpt.prompts.tokens import whole_context
from otpt.report import ResultKey, Results
from otpt.report.figures import draw, draw_similarity, figure_names, pairwise_cosines, save, styled

SIMILARITY = "similarity"
_USED_BY = {"sweep": ("metric", "setting"), "heatmap": ("metric",), "templates": ("best",)}
"""Options that only one kind of figure has."""


@o.option_group("Options")
class FigureOptions(o.Options):
    """Options of single kinds of figures."""

    metric: Annotated[str | None, o.option("'sweep', 'heatmap': metric to draw (default: ece)", metavar="NAME")] = None
    setting: Annotated[str | None, o.option("'sweep': setting to draw it against (default: the first)")] = None
    best: Annotated[int | None, o.option("'templates': number of the most accurate to mark (default: 10)")] = None

    def of(self, kind: str) -> dict[str, str | int | None]:
        """Return the given options; ``OtptError`` for one that the kind of figure does not have."""
        values = {"metric": self.metric, "setting": self.setting, "best": self.best}
        options: dict[str, str | int | None] = {name: value for name, value in values.items() if value is not None}
        unused = [name for name in options if name not in _USED_BY.get(kind, ())]
        if unused:
            raise OtptError(f"--{unused[0]} has no effect on the figure {kind!r}; leave it out.")
        return options


@o.option_group("Options")
class SimilarityOptions(o.Options):
    """Classes and prompts whose text features are compared."""

    prompts: Annotated[o.Several, o.option("'similarity': contexts, or @FILE with one per line", metavar="WORDS")] = (
        None
    )
    classes: o.Classes = None
    data: o.Data = None


def plot(
    kind: Annotated[
        str,
        o.option("reliability, pooled, overview, sweep, heatmap, similarity …; a wrong name lists all", metavar="KIND"),
    ],
    /,
    *runs: o.Runs,
    out: Annotated[Path, o.figure("the figure: .png, .svg or .pdf", "--out", "-o")],
    dpi: Annotated[int, o.option("dots per inch of a PNG", validator=validators.Number(gte=20, lte=1200))] = 150,
    theme: Annotated[Literal["light", "dark"], o.option("colours")] = "light",
    figure: FigureOptions = FigureOptions(),
    similarity: SimilarityOptions = SimilarityOptions(),
    which: o.SelectionOptions = o.SelectionOptions(),
    model: o.ModelOptions = o.ModelOptions(),
) -> int:
    """Draw a figure of runs. 'similarity' shows cosine similarities of text features, of a run or of any --classes and
    --prompts without one.

    otpt plot reliability runs/main --out reliability.png
    otpt plot sweep runs/sweep --metric ece --out sweep.svg
    otpt plot similarity --classes cat dog bird --prompts "a photo of a" --out similarity.png
    """
    kinds = [*figure_names(), SIMILARITY]
    if kind not in kinds:
        raise unknown("kind of figure", kind, kinds)
    options = figure.of(kind)
    results = which.open(runs) if runs or kind != SIMILARITY else None
    if kind == SIMILARITY or results is None:
        drawn = _draw_similarity(results, similarity, which, model, theme)
    else:
        unused = [*similarity.given(), *(["backbone"] if model != o.ModelOptions() else [])]
        if unused:
            raise OtptError(f"--{unused[0]} is for the figure {SIMILARITY!r}, not for {kind!r}; leave it out.")
        drawn = draw(
            kind,
            results,
            datasets=which.datasets,
            methods=which.methods,
            prompt=which.prompt,
            theme=theme,
            **options,
        )
    save(drawn, out, dpi=dpi)
    print(f"The figure is in {str(out)!r}.")
    return 0


def _draw_similarity(
    results: Results | None,
    similarity: SimilarityOptions,
    which: o.SelectionOptions,
    model: o.ModelOptions,
    theme: str,
) -> Figure:
    dataset = which.datasets[0] if which.datasets else None
    title, names = _class_names(results, dataset, similarity)
    prompts: Sequence[str] = o.read_lines(similarity.prompts or (), "file of prompts")
    if not prompts and results is not None and title in results.datasets:
        prompts = results.prompts_of(title)
    if not prompts:
        raise OtptError("No prompt is known; give some after --prompts, such as 'a photo of a' 'an example of'.")
    backbone = _load_backbone(results, model)
    cosines = {words: _cosines(backbone, names, words) for words in prompts}
    method = which.methods[0] if which.methods else "zero-shot"
    labels, explanation = _labels(results, title, prompts, method)
    with styled(theme):
        note = f"{backbone.name}, {len(names)} classes{explanation}"
        return draw_similarity(cosines, labels, title=title, note=note)


def _class_names(
    results: Results | None, dataset: str | None, similarity: SimilarityOptions
) -> tuple[str, Sequence[str]]:
    """Return a title and the class names."""
    class_list = o.read_classes(similarity.classes)
    if class_list is not None and dataset is None:
        return f"{len(class_list)} classes", check_class_names(class_list.names)
    if results is not None:
        name = dataset or results.datasets[0]
        if name not in results.datasets:
            raise unknown("data set of the runs", name, results.datasets)
        return name, results.configs_of(name)[0].classes
    if dataset is None:
        raise OtptError("No classes are known; give a run, --datasets NAME or --classes NAME ….")
    loaded = load_dataset(dataset, root=similarity.data, classes=class_list)
    return loaded.name, loaded.class_names


def _load_backbone(results: Results | None, model: o.ModelOptions) -> Backbone:
    """Load the given model, or the runs' own."""
    if results is None:
        return model.load()
    stored = results.runs[0].config.backbone
    backbone = model.load(backbone=model.chosen or stored.name)
    if backbone.fingerprint != stored.fingerprint:
        raise OtptError(f"{backbone.name!r} has other weights than {stored.name!r}, the model of the runs.")
    return backbone


def _cosines(backbone: Backbone, names: Sequence[str], words: str) -> npt.NDArray[np.float64]:
    """Compute the similarities of all pairs of classes under a prompt."""
    encoder = text_encoder(backbone)
    tokens = tokenize_prompts(encoder, names, whole_context(encoder, Prompt(words)))
    context = tokens.start.to(device=backbone.device, dtype=backbone.dtype)
    features = prompt_encoder(encoder, tokens).encode(context[None])[0]
    return pairwise_cosines(features.double().cpu().numpy())


def _labels(results: Results | None, dataset: str, prompts: Sequence[str], method: str) -> tuple[dict[str, str], str]:
    """Return the run's metrics under each prompt, and a note that names them."""
    labels = dict.fromkeys(prompts, "")
    explanation = ""
    if results is None:
        return labels, explanation
    for words in prompts:
        score = results.score(ResultKey(dataset, results.seeds[0], words, method))
        if score is not None:
            labels[words] = f"ECE {100 * score['ece']:.2f}, acc. {100 * score['accuracy']:.2f}"
            explanation = f"; ECE ({results.n_bins} bins) and accuracy of {method}"
    return labels, explanation
