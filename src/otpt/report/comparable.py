"""Whether runs may be in one table: the same images, seeds, bins, model, and methods of one meaning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from otpt.errors import OtptError
from otpt.runs import ColumnConfig, DatasetConfig, Run
from otpt.runs.config import differences


def check_comparable(
    runs: Sequence[Run], *, seeds: Sequence[int] | None = None, given: Collection[str] = (), one_backbone: bool = True
) -> None:
    """:class:`OtptError` that names the first two runs that cannot be compared, and why.

    Args:
        seeds: seeds that are compared; None for all.
        given: of "bins" and "side" those that replace the runs' own.
    """
    for first, second in combinations(runs, 2):
        for reason in (*image_differences(first, second, seeds), *_reasons(first, second, seeds, given, one_backbone)):
            raise OtptError(f"The runs {str(first.folder)!r} and {str(second.folder)!r} cannot be compared: {reason}.")


def image_differences(first: Run, second: Run, seeds: Sequence[int] | None) -> Iterator[str]:
    """Why the images of a data set that two runs have are not the same."""
    for left, right in _shared(first, second):
        if left["fingerprint"] != right["fingerprint"]:
            yield f"they saw different images or classes under the name {left['name']!r}"
        counts = [
            {n for column in each["columns"] for s, n in column["images"].items() if seeds is None or int(s) in seeds}
            for each in (left, right)
        ]
        if all(counts) and counts[0] != counts[1]:
            words = " and ".join("/".join(map(str, sorted(each))) for each in counts)
            yield f"they saw different numbers of images of {left['name']!r}, {words}"


def _shared(first: Run, second: Run) -> list[tuple[DatasetConfig, DatasetConfig]]:
    """Data sets that both runs have, as each of them configures it."""
    ours = {dataset["name"]: dataset for dataset in first.datasets}
    return [(ours[dataset["name"]], dataset) for dataset in second.datasets if dataset["name"] in ours]


def _reasons(
    first: Run, second: Run, seeds: Sequence[int] | None, given: Collection[str], one_backbone: bool
) -> Iterator[str]:
    a, b, shared = first.config, second.config, _shared(first, second)
    together = one_backbone or shared
    if together and a["backbone"]["fingerprint"] != b["backbone"]["fingerprint"]:
        yield f"their models differ, {a['backbone']['name']!r} and {b['backbone']['name']!r}"
    for left, right in shared:
        for ones, others in product(left["columns"], right["columns"]):
            yield from _column_differences(left["name"], ones, others, (a["methods"], b["methods"]), seeds)
    chosen = [[seed for seed in run.seeds if seeds is None or seed in seeds] for run in (first, second)]
    if together and set(chosen[0]) != set(chosen[1]):
        words = " and ".join(", ".join(map(str, each)) or "none" for each in chosen)
        yield f"their seeds differ, {words}; choose common ones with --seeds"
    for name in ("bins", "side"):
        if a["scoring"][name] != b["scoring"][name] and name not in given:
            yield f"their {name} differ, {a['scoring'][name]} and {b['scoring'][name]}; choose with --{name}"
    if a["numbers"].get("official_precision") != b["numbers"].get("official_precision"):
        yield "one rounds to float16 as the official scripts do (--official-precision), the other does not"
    for name, method in b["methods"].items():
        if name in a["methods"] and (found := differences(a["methods"][name], method, name)):
            yield f"they mean different things by {name!r}: {found[0]}"


def _column_differences(
    dataset: str,
    left: ColumnConfig,
    right: ColumnConfig,
    methods: tuple[Mapping[str, Any], Mapping[str, Any]],
    seeds: Sequence[int] | None,
) -> Iterator[str]:
    """Why a column of one run and one of the other cannot be compared on a data set."""
    one, other = left["prompt"], right["prompt"]
    both = {int(seed) for seed in left["images"] if seed in right["images"] and (seeds is None or int(seed) in seeds)}
    if both and (one["name"], left["method"]) == (other["name"], right["method"]):
        yield f"both hold {left['method']!r} on {dataset!r} with the prompt {one['name']!r}; leave one of them out"
    if one["name"] == other["name"] and one.get("fingerprint") != other.get("fingerprint"):
        yield f"they start from different learned prompts of {one['name']!r} on {dataset!r}"
    a, b = methods[0][left["method"]], methods[1][right["method"]]
    alike = all(a.get(key) == b.get(key) for key in ("views", "augmix"))
    if alike and a.get("objectives") and b.get("objectives") and left.get("views") != right.get("views"):
        yield f"their views of {dataset!r} differ, {left['views']!r} and {right['views']!r}"
