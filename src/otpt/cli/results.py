"""Read results: ``otpt metrics``, ``compare``, ``table``, ``plot`` and ``report``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import validators

import otpt
from otpt.cli import options as o
from otpt.cli.terminal import command_line, plural, print_json, print_table, say, terminal_width
from otpt.errors import OtptError, unknown
from otpt.files import csv_cell, write_atomically

if TYPE_CHECKING:
    import pandas as pd

_SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json", ".txt": "terminal"}


def compare(
    *runs: o.Runs,
    datasets: o.ChosenDatasets = None,
    prompt: o.ChosenPrompt = None,
    resamples: Annotated[int, o.option("bootstrap resamples")] = 1000,
    level: Annotated[float, o.option("confidence level of the intervals")] = 0.95,
    json: o.Json = False,
    which: o.ResultOptions = o.ResultOptions(),
) -> int:
    """Compare two methods image by image (default: the two with the lowest ECE): accuracy by the exact McNemar test,
    calibration errors, Brier score and NLL by a paired bootstrap; for each data set and over all, seeds averaged.

    otpt compare runs/main --methods o-tpt c-tpt
    """
    from otpt.report.formats import text_table

    if len(which.methods or ()) > 2:
        raise OtptError(f"{len(which.methods or ())} methods were given; expected two, or one and the best other.")
    results = which.open(runs)
    a, b, lowest = _pick(results, which.methods or (), datasets, prompt)
    found = otpt.report.compare_methods(
        results, a, b, datasets=datasets, prompt=prompt, resamples=resamples, level=level
    )
    if json:
        rows = [each.as_dict() for each in found]
        print_json({"a": a, "b": b, "seeds": results.seeds, "level": level, "comparisons": rows})
        return 0
    width = terminal_width()
    print(text_table(otpt.report.comparison_table(found, level), 2, width), end="\n\n")
    tests = sum(len(each.differences) for each in found)
    chance = f"{tests} tests: about {0.05 * tests:.1f} of them are below p = 0.05 by chance alone."
    for sentence in filter(None, (*(each.conclusion for each in found), lowest, chance)):
        print(textwrap.fill(" ".join(sentence.split()), width or 120))
    return 0


def _pick(
    results: otpt.report.Results, methods: Sequence[str], datasets: Sequence[str] | None, prompt: str | None
) -> tuple[str, str, str]:
    """Return two methods, and a sentence if another one has a lower ECE than both."""
    names = [name for name in datasets or results.datasets if name in results.datasets]
    error = otpt.report.ranked(results, "ece", datasets=names, prompt=prompt)
    found = [*methods, *(name for name in error if name not in methods)]
    if len(found) < 2:
        raise OtptError(f"The runs hold {len(found)} method with all data sets under one prompt; name two.")
    a, b = found[:2]
    best = next(iter(error), a)
    if best in (a, b) or not {a, b} <= set(error):
        return a, b, ""
    others = f"{100 * error[a]:.2f} % of {a} and {100 * error[b]:.2f} % of {b}"
    return a, b, f"{best} has the lowest ECE: {100 * error[best]:.2f} %, against {others}."


def table(
    *runs: o.Runs,
    layout: Annotated[str, o.option("layout of the paper; a wrong name lists all", metavar="NAME")] = "main",
    metrics: Annotated[o.Several, o.option("such as ece aurc (default: the layout's)", metavar="NAME")] = None,
    paper: Annotated[
        o.Several,
        o.option("add a paper's numbers, by default O-TPT's", consume_multiple=(0, 1), metavar="[NAME]"),
    ] = None,
    paper_backbone: Annotated[
        Literal["ViT-B/16", "RN50"] | None, o.option("which numbers of the paper (default: by the runs)")
    ] = None,
    intervals: o.Intervals = None,
    datasets: o.ChosenDatasets = None,
    prompt: o.ChosenPrompt = None,
    format: Annotated[
        Literal["terminal", "markdown", "csv", "latex", "json"] | None,
        o.option("format (default: by the suffix of --out)"),
    ] = None,
    out: Annotated[Path | None, o.out("file: .md, .csv, .tex, .json or .txt")] = None,
    which: o.ResultOptions = o.ResultOptions(),
) -> int:
    """Make a table of runs in a layout of the paper, with averages and marked best values, optionally with a paper's
    numbers and the difference. Exit code 3 if a run is incomplete.

    otpt table runs/main --paper
    otpt table runs/* --metrics accuracy debiased_ece --out table.tex
    """
    from otpt.cli.labels import label_runs, label_table_text
    from otpt.report.papers import BACKBONES, LAYOUTS, OTPT, PAPERS, guess_backbone

    form = format or ("terminal" if out is None else _SUFFIXES.get(out.suffix.lower()))
    if form is None:
        raise OtptError(f"{str(out)!r} has an unknown suffix; expected one of {', '.join(_SUFFIXES)}, or --format.")
    name, level = o.optional(paper, OTPT), o.optional(intervals, 0.95)
    for kind, given, known in (("paper", name or OTPT, PAPERS), ("layout", layout, LAYOUTS)):
        if given not in known:
            raise unknown(kind, given, known)
    if labels := label_runs(runs):
        text = label_table_text(labels, form, n_bins=which.bins)
        if out is None:
            print(text, end="")
        else:
            write_atomically(out, text.encode())
        return say_in_progress(labels)
    by_table = LAYOUTS[layout].by_table
    results = which.open(runs, one_backbone=not by_table)
    if name not in (None, OTPT):
        if layout != "main" or metrics or level:
            raise OtptError(f"--layout, --metrics and --intervals go with the O-TPT paper, not with --paper {name}.")
        tables = otpt.report.compare_with_paper(
            results, str(name), datasets=datasets, methods=which.methods, prompt=prompt
        )
    else:
        backbone: str | None = paper_backbone
        if name and backbone is None:
            backbone = guess_backbone(results) or (BACKBONES[0] if by_table else None)
            if backbone is None:
                raise OtptError(f"The paper has no numbers of {results.model!r}; choose some with --paper-backbone.")
        tables = otpt.report.build_tables(
            results,
            layout,
            datasets=datasets,
            methods=which.methods,
            metrics=metrics,
            prompt=prompt,
            paper=backbone,
            level=level,
        )
    if out is None:
        print(otpt.report.render(tables, form, width=terminal_width()), end="")
    else:
        write_atomically(out, otpt.report.render(tables, form).encode())
    return say_in_progress(results.runs)


def say_in_progress(runs: Sequence[otpt.runs.Run]) -> int:
    """Print which runs are incomplete; returns the exit code."""
    code = 0
    for run in runs:
        done, total = run.progress()
        if done < total:
            say(f"the run {str(run.folder)!r} is incomplete: {done} of {total} images are done")
            code = 3
    return code


def report(
    *runs: o.Runs,
    out: Annotated[Path, o.out("the page", "FILE", "html", "htm")] = Path("report.html"),
    title: Annotated[str, o.option("title of the page", metavar="TEXT")] = "Calibration report",
    data: o.Data = None,
    images: Annotated[int, o.option("images of each kind per data set, 0 for none")] = 6,
    explain: Annotated[
        tuple[int, ...] | None,
        o.option(
            "heat maps of the N most confident mistakes of each method and data set, 3 by default; loads the model",
            consume_multiple=(0, 1),
            metavar="[N]",
        ),
    ] = None,
    which: o.ResultOptions = o.ResultOptions(),
) -> int:
    """Make one HTML file of runs, of one model or several: summary, sortable tables, reliability diagrams, images,
    settings. It needs no network and no other file.

    otpt report runs/main --out report.html --data ~/data
    otpt report runs/main --explain 3
    """
    from otpt.cli.labels import label_runs, show_labels
    from otpt.report.page import make_page, write_page

    if labels := label_runs(runs):
        return show_labels(labels, out=out, n_bins=which.bins, title=title)
    models = otpt.report.open_models(runs, n_bins=which.bins, side=which.side, seeds=which.seeds, methods=which.methods)
    maps = o.optional(explain, 3) or 0
    page = make_page(models, title=title, root=data, images=images, explain=maps, command=command_line())
    write_page(out, page)
    print(f"The page is in {str(out)!r} ({len(page.encode('utf-8', 'replace')) / 1e6:.1f} MB).")
    for results in models.values():
        say_in_progress(results.runs)
    return 0


_KEYS = ["dataset", "seed", "prompt", "method", "variant"]


def metrics(
    *runs: o.Runs,
    metrics: Annotated[o.Several, o.option("only these, such as ece aurc auroc", metavar="NAME")] = None,
    intervals: o.Intervals = None,
    per_class: Annotated[bool, o.option("accuracy of each class, the hardest first")] = False,
    confusions: Annotated[
        o.Numbers,
        o.option(
            "the N most confused pairs of classes, 10 by default", at_least=1, consume_multiple=(0, 1), metavar="[N]"
        ),
    ] = None,
    json: o.Json = False,
    out: Annotated[
        Path | None, o.out("write a CSV, one row per data set, seed, prompt and method", "FILE", "csv")
    ] = None,
    which: o.ResultOptions = o.ResultOptions(),
) -> int:
    """Recompute the metrics of runs from their rows and store them; with --bins or --side they are only printed. Exit
    code 3 if a run is incomplete.

    otpt metrics runs/main
    otpt metrics runs/main --metrics ece aurc --intervals
    otpt metrics runs/main --per-class --out classes.csv
    """
    import pandas as pd

    from otpt.cli.labels import label_runs, show_labels

    count, level = o.optional(confusions, 10), o.optional(intervals, 0.95)
    if out is not None and per_class and count is not None:
        raise OtptError("--per-class and --confusions are two tables; give --out with one of them.")
    if not runs:
        raise OtptError("No run was given; expected run folders of 'otpt evaluate'.")
    if labels := label_runs(runs):
        return show_labels(labels, out=out, as_json=json, n_bins=which.bins)
    opened = [which.open([run], methods=which.methods) for run in runs]
    shown: list[dict[str, Any]] = []
    frames: list[pd.DataFrame] = []
    for results in opened:
        own = {"run": str(results.runs[0].folder), "backbone": results.model}
        found: dict[str, pd.DataFrame] = {}
        if per_class:
            found["classes"] = otpt.report.per_class(results)
        if count is not None:
            found["confusions"] = otpt.report.confusions(results, count)
        if not found:
            found["scores"] = results.frame.drop(columns=["run", "model", "partial"])
            if not results.partial and which.bins is None and which.side is None:
                otpt.runs.write_metrics(results.runs[0])
        data: dict[str, Any] = {name: records(frame) for name, frame in found.items()}
        if level is not None and "scores" in found:
            tables = otpt.report.metric_tables(results, metrics=metrics, level=level)
            data["intervals"] = [each.to_dict() for each in tables]
        frames += [frame.assign(**own) for frame in found.values()]
        shown.append({**own, **data})
        if not json and out is None:
            if len(opened) > 1:
                print(f"{own['run']} ({own['backbone']})")
            _print(results, found, metrics, level)
    if out is not None:
        write_csv(out, pd.concat(frames, ignore_index=True))
        print(f"The numbers of {plural(len(opened), 'run')} are in {str(out)!r}.")
    elif json:
        print_json(shown[0] if len(shown) == 1 else {"runs": shown})
    return max(say_in_progress(results.runs) for results in opened)


def _print(
    results: otpt.report.Results, found: dict[str, pd.DataFrame], metrics: o.Several, level: float | None
) -> None:
    if "scores" in found:
        tables = otpt.report.metric_tables(results, metrics=metrics, level=level)
        print(otpt.report.render(tables, "terminal", width=terminal_width()), end="")
        if metrics is None and level is None:
            print_summary(results)
    for kind in ("classes", "confusions"):
        for (dataset, seed, _, method, _), rows in found[kind].groupby(_KEYS, sort=False) if kind in found else ():
            title = f"{dataset}, seed {seed}, {method}"
            if kind == "classes":
                own = rows[rows["images"] > 0].sort_values("accuracy", kind="stable")
                head, names, share = (title, "images", "accuracy %"), own["class"], own["accuracy"]
            else:
                own, names = rows, rows["label"] + " → " + rows["prediction"]
                head, share = (f"{title}: label → prediction", "images", "% of the class"), own["fraction"]
            print_table(head, zip(names, own["images"].map(str), (100 * share).map("{:.1f}".format), strict=True))
            print()


def print_summary(results: otpt.report.Results) -> None:
    """Print one table of the most important metrics, and coverage and size of prediction sets if there are any."""
    from otpt.report.formats import text_table
    from otpt.report.tables import set_table

    print(otpt.report.evaluation_table(results).to_text(terminal_width() or 80))
    if not (sets := set_table(results)).empty:
        print(text_table(sets, 2, terminal_width()), end="\n\n")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as plain data; nan is None."""
    plain = frame.astype(object)
    return list(plain.where(plain.notna(), None).to_dict("records"))


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a CSV file whose cells no spreadsheet computes."""
    names = frame.select_dtypes(exclude="number").columns
    frame[names] = frame[names].map(lambda cell: csv_cell(cell) if isinstance(cell, str) else cell)
    write_atomically(path, frame.to_csv(index=False, lineterminator="\n").encode("utf-8", "replace"))


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
    """Load the given model, or the runs' own."""
    if results is None:
        return model.load()
    stored = results.runs[0].config.backbone
    backbone = model.load(backbone=model.chosen or stored.name)
    if backbone.fingerprint != stored.fingerprint:
        raise OtptError(f"{backbone.name!r} has other weights than {stored.name!r}, the model of the runs.")
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
