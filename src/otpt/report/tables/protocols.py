"""A paper's protocol in words, and what of it a run does otherwise."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from otpt.data.registered.entry import find_entry
from otpt.report.papers.paper import PaperTable
from otpt.report.papers.published import CONFIDENCE, Paper
from otpt.report.results import Results
from otpt.report.tables.table import AVERAGE

_VIEWS = re.compile(r"\bn=(\d+) augmix=(on|off)\b")


def in_words(paper: Paper, table: PaperTable) -> str:
    """Where the numbers come from, and how they were measured."""
    protocol = paper.protocol
    kinds = {"fine-grained": "fine-grained sets", "imagenet": "ImageNet", "shift": "shifts"}
    mixed = [f"{_on(on)} for {kinds[kind]}" for kind, on in protocol.augmix.items() if on is not None]
    said = [
        table.backbone,
        f"prompt {table.prompt!r}",
        "" if protocol.views is None else f"{protocol.views} views",
        f"AugMix {', '.join(mixed)}" if mixed else "",
        "" if protocol.seeds is None else f"{protocol.seeds} seeds",
        "" if protocol.bins is None else f"{protocol.bins} bins",
    ]
    numbers = {"views": protocol.views, "seeds": protocol.seeds, "bins": protocol.bins, "AugMix": mixed or None}
    unknown = [name for name, value in numbers.items() if value is None]
    words = f"{paper.source} ({CONFIDENCE[protocol.confidence]}): {', '.join(filter(None, said))}"
    if protocol.inferred:
        words += f"; inferred: {', '.join(protocol.inferred)}"
    return f"{words}; not stated: {', '.join(unknown)}." if unknown else f"{words}."


def differences(results: Results, paper: Paper, table: PaperTable, rows: Collection[tuple[str, str, str]]) -> str:
    """What the runs do otherwise than the paper in the rows (data set or "average", method, prompt) shown."""
    found = [*_of_runs(results, paper)]
    shown = {name for name, _, _ in rows}
    if AVERAGE in shown:
        shown.update(table.datasets)
    for name in (each for each in table.datasets if each in shown):
        entry, held = find_entry(name), results.images_of(name)
        if entry is not None and entry.test_images not in {None, held}:
            found.append(f"{held} of {entry.test_images} images of {name}")
        found += _of_views(results, paper, name, {(method, prompt) for _, method, prompt in rows})
    if not found:
        return "The runs follow this protocol as far as it is stated."
    return f"The runs differ: {'; '.join(dict.fromkeys(found))}."


def _of_runs(results: Results, paper: Paper) -> Iterator[str]:
    backbone, protocol = results.runs[0].config["backbone"], paper.protocol
    if not str(backbone["name"]).endswith("/openai"):
        yield f"the model is {backbone['name']!r}"
    if protocol.seeds is not None and len(results.seeds) != protocol.seeds:
        yield f"{len(results.seeds)} seed{'s' * (len(results.seeds) > 1)} in place of {protocol.seeds}"
    if protocol.bins is not None and results.bins != protocol.bins:
        yield f"{results.bins} bins in place of {protocol.bins}"


def _of_views(results: Results, paper: Paper, dataset: str, rows: Collection[tuple[str, str]]) -> Iterator[str]:
    wanted = paper.protocol.mixes(dataset)
    for column in results.columns_of(dataset):
        views = _VIEWS.search(column["views"] or "")
        if views is None or (column["method"], column["prompt"]["name"]) not in rows:
            continue
        count, mixed = int(views[1]), views[2] == "on"
        if paper.protocol.views is not None and count not in {1, paper.protocol.views}:
            yield f"{count} views in place of {paper.protocol.views}"
        if wanted is not None and count > 1 and mixed != wanted:
            yield f"AugMix {_on(mixed)} for {dataset}"


def _on(value: bool | None) -> str:
    return "on" if value else "off"
