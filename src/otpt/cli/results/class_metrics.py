"""``otpt metrics RUN --per-class --confusions 10``: accuracy of each class, and the pairs that are confused most."""

from __future__ import annotations

from typing import Any

from otpt.cli.terminal import Column, print_columns


def print_per_class(rows: list[dict[str, Any]]) -> None:
    """For each data set, seed and prompt a table: classes down, methods across; the hardest classes first."""
    for title, own in _by_table(rows).items():
        by: dict[str, list[dict[str, Any]]] = {}
        for row in own:
            by.setdefault(row["method"], []).append(row)
        first = next(iter(by.values()))
        # by position: names may occur twice, as in ImageNet
        labels = sorted((at for at, row in enumerate(first) if row["images"]), key=lambda at: first[at]["accuracy"])
        columns = [
            Column(f"{title}: accuracy %", [first[at]["class"] for at in labels], is_name=True),
            Column("images", [str(first[at]["images"]) for at in labels]),
            *(Column(method, [_percent(each[at]["accuracy"]) for at in labels]) for method, each in by.items()),
        ]
        print_columns(columns)
        print()


def print_confusions(rows: list[dict[str, Any]]) -> None:
    """For each data set, seed, prompt and method a table of pairs."""
    for title, own in _by_table(rows).items():
        for method in dict.fromkeys(row["method"] for row in own):
            pairs = [row for row in own if row["method"] == method]
            columns = [
                Column(f"{title}, {method}: label", [row["label"] for row in pairs], is_name=True),
                Column("predicted as", [row["prediction"] for row in pairs], is_name=True),
                Column("images", [str(row["images"]) for row in pairs]),
                Column("% of the class", [_percent(row["fraction"]) for row in pairs]),
            ]
            print_columns(columns)
            print()


def _by_table(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows by data set, with seed and prompt where there are several of them."""
    seeds = {row["seed"] for row in rows}
    prompts = {row["prompt"] for row in rows}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        title = str(row["dataset"])
        title += f", seed {row['seed']}" if len(seeds) > 1 else ""
        title += f", {row['prompt']!r}" if len(prompts) > 1 else ""
        found.setdefault(title, []).append(row)
    return found


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.1f}"
