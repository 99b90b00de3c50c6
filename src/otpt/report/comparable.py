"""Whether runs may stand in one table: the same pictures, seeds, bins, model, and methods of one meaning."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from otpt.errors import OtptError
from otpt.evaluation import Run
from otpt.evaluation.differences import differences


def check_comparable(
    runs: Sequence[Run], *, seeds: Sequence[int] | None = None, given: Collection[str] = (), one_backbone: bool = True
) -> None:
    """:class:`OtptError` that names the first two runs that do not go together, and why.

    Args:
        seeds: the seeds that are looked at; None for all.
        given: of "bins" and "side" those that are chosen anew, so the runs' own do not matter.
    """
    for i, second in enumerate(runs):
        for first in runs[:i]:
            for reason in _reasons(first, second, seeds, given, one_backbone):
                raise OtptError(
                    f"The runs {str(first.folder)!r} and {str(second.folder)!r} cannot be compared: {reason}."
                )


def _reasons(
    first: Run, second: Run, seeds: Sequence[int] | None, given: Collection[str], one_backbone: bool
) -> Iterable[str]:
    """Why two runs do not go together, most telling first."""
    a, b = first.config, second.config
    ours = {dataset["name"]: (i, dataset) for i, dataset in enumerate(first.datasets)}
    shared = [(*ours[d["name"]], i, d) for i, d in enumerate(second.datasets) if d["name"] in ours]
    for _, left, _, right in shared:
        yield from _pictures(left, right)
    if (one_backbone or shared) and a["backbone"]["fingerprint"] != b["backbone"]["fingerprint"]:
        yield f"their models differ, {a['backbone']['name']!r} and {b['backbone']['name']!r}"
    chosen = [[s for s in config["seeds"] if seeds is None or s in seeds] for config in (a, b)]
    for position, left, other, right in shared:
        if set(chosen[0]) & set(chosen[1]):
            both = set(first.columns(position)) & set(second.columns(other))
            for prompt, method in sorted(both):
                yield f"both hold {method!r} on {left['name']!r} with the prompt {prompt!r}; leave one of them out"
        for start, digest in left.get("contexts", {}).items():
            if right.get("contexts", {}).get(start, digest) != digest:
                yield f"they start from different learned prompts of {start!r} on {left['name']!r}"
        if left["views"] != right["views"] and _tunes(a) and _tunes(b):
            yield f"their views of {left['name']!r} differ, {left['views']!r} and {right['views']!r}"
    if (one_backbone or shared) and set(chosen[0]) != set(chosen[1]):
        words = " and ".join(", ".join(map(str, each)) or "none" for each in chosen)
        yield f"their seeds differ, {words}; choose common ones with --seeds"
    for name in ("bins", "side"):
        if a[name] != b[name] and name not in given:
            yield f"their {name} differ, {a[name]} and {b[name]}; choose with --{name}"
    if a["official_precision"] != b["official_precision"]:
        yield "one rounds to float16 as the official scripts do (--official-precision), the other does not"
    numbers = {method["name"]: method for method in a["methods"]}
    for method in b["methods"]:
        if method["name"] in numbers and (found := differences(numbers[method["name"]], method, method["name"])):
            yield f"they mean different things by {method['name']!r}: {found[0]}"


def _pictures(left: dict[str, Any], right: dict[str, Any]) -> Iterable[str]:
    name = left["name"]
    if left["fingerprint"] != right["fingerprint"]:
        yield f"they saw different pictures or classes under the name {name!r}"
    if left["pictures"] != right["pictures"]:
        yield f"they saw different numbers of pictures of {name!r}, {left['pictures']} and {right['pictures']}"


def _tunes(config: dict[str, Any]) -> bool:
    """Whether a method of the run looks at more than the clean view."""
    return any(method["objectives"] for method in config["methods"])
