"""The results in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence

from otpt.metrics import percent
from otpt.report.defaults import FEW
from otpt.report.page.numbers import OWN_PROMPT, Line, better, by_method
from otpt.report.ranking import gap
from otpt.report.results import Results

_CALIBRATED = 0.01
"""Over-confidence below this fraction is called none."""


def summary(results: Results, lines: Sequence[Line], averages: Sequence[Line]) -> list[str]:
    """What the numbers say, most important first; names are not marked up, the page does that."""
    known = [line for line in lines if line.numbers]
    if not known:
        return ["Nothing has been predicted yet."]
    deciding = list(averages) or known
    sentences = [_best_calibrated(results, deciding, known, averages), _most_accurate(results, deciding, known)]
    sentences += [_confidence(deciding), _few(known)]
    unreadable = max(line.unreadable for line in lines)
    if unreadable:
        sentences.append(f"Some images could not be read ({unreadable} of one data set); they count nowhere.")
    return [sentence for sentence in sentences if sentence]


def label(line: Line, lines: Sequence[Line]) -> str:
    """The method, with its prompt where there are several."""
    several = len({other.prompt for other in lines}) > 1
    method = isolated(line.method)
    return f"{method} with “{isolated(line.prompt)}”" if several else method


def isolated(name: str) -> str:
    """A name between Unicode's isolates, so that right-to-left letters do not turn the sentence around it."""
    return f"\u2068{name}\u2069"


def _best(lines: Sequence[Line], metric: str) -> Line:
    best = lines[0]
    for line in lines[1:]:
        if better(metric, line.numbers[metric].value, best.numbers[metric].value):
            best = line
    return best


def _best_calibrated(
    results: Results, deciding: Sequence[Line], known: Sequence[Line], averages: Sequence[Line]
) -> str:
    best, next_ = _first_two(deciding, "ece")
    where = f" on average over {len({line.dataset for line in known})} data sets" if averages else ""
    debiased = best.numbers["debiased_ece"].text
    words = f"{label(best, deciding)} has the lowest ECE{where}: {best.numbers['ece'].text} %, debiased {debiased} %"
    if next_ is not None:
        words += f"; next is {label(next_, deciding)} with {next_.numbers['ece'].text} %"
        words += _surely(results, "ece", best, next_, known)
    words += "."
    if averages:
        own = {line.dataset: _best([o for o in known if o.dataset == line.dataset], "ece") for line in known}
        count = sum(line.method == best.method and best.prompt in {line.prompt, OWN_PROMPT} for line in own.values())
        words += f" It has the lowest ECE on {count} of {len(own)}."
    return words


def _most_accurate(results: Results, deciding: Sequence[Line], known: Sequence[Line]) -> str:
    best, next_ = _first_two(deciding, "accuracy")
    if next_ is not None and next_.numbers["accuracy"].value == best.numbers["accuracy"].value:
        return (
            f"{label(best, deciding)} and {label(next_, deciding)} share the highest accuracy: "
            f"{best.numbers['accuracy'].text} %."
        )
    words = f"{label(best, deciding)} has the highest accuracy: {best.numbers['accuracy'].text} %"
    if next_ is not None:
        words += f"; next is {label(next_, deciding)} with {next_.numbers['accuracy'].text} %"
        words += _surely(results, "accuracy", best, next_, known)
    return f"{words}."


def _first_two(lines: Sequence[Line], metric: str) -> tuple[Line, Line | None]:
    best = _best(lines, metric)
    others = [line for line in lines if line is not best]
    return best, _best(others, metric) if others else None


def _surely(results: Results, metric: str, best: Line, next_: Line, known: Sequence[Line]) -> str:
    """Whether the difference of the two is more than chance, by a paired bootstrap over the images of all seeds."""
    places = []
    for line in (best, next_):
        own = by_method(known)[line.method, line.prompt] if line.dataset is None else [line]
        places.append((line.method, [(str(each.dataset), each.prompt) for each in own]))
    found = gap(results, metric, *places)
    if found is None:
        return ""
    if found.is_noise:
        return f", a difference within noise (p = {found.p:.2g})"
    low, high = sorted((abs(found.low), abs(found.high)))
    return f": they differ by {percent(low)} to {percent(high)} points (p = {found.p:.2g})"


def _few(known: Sequence[Line]) -> str:
    least = min(line.images for line in known)
    if least >= FEW:
        return ""
    return (
        f"With fewer than {FEW} images in a data set ({least} here), most of an ECE may be bias, which a calibrated "
        "model would have too: look at the debiased ECE."
    )


def _confidence(deciding: Sequence[Line]) -> str:
    values = [line.numbers["overconfidence"].value for line in deciding]
    for sign, word in ((1, "over-confident"), (-1, "under-confident")):
        sizes = [sign * value for value in values]
        if all(size > _CALIBRATED for size in sizes):
            least, most = percent(min(sizes), 1), percent(max(sizes), 1)
            if len(sizes) == 1:
                return f"It is {word} by {most} points."
            return f"All methods are {word}, by {least} to {most} points."
    if all(abs(value) <= _CALIBRATED for value in values):
        return f"Mean confidence and accuracy differ by {percent(max(map(abs, values)), 1)} points at most."
    furthest = max(deciding, key=lambda line: abs(line.numbers["overconfidence"].value))
    value = furthest.numbers["overconfidence"].value
    word = "over-confident" if value > 0 else "under-confident"
    return f"{label(furthest, deciding)} is {word} by {percent(abs(value), 1)} points, more than any other method."
