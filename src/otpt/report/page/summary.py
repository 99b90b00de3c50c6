"""The results in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from otpt.metrics import percent
from otpt.report.defaults import FEW
from otpt.report.page.numbers import OWN_PROMPT, Line, by_method
from otpt.report.ranking import gap
from otpt.report.results import Results
from otpt.report.tables.table import cost

_NAMED = 4
"""Methods that a sentence names at most."""

_CALIBRATED = 0.01
"""Over-confidence below this fraction is called none."""

_DEVIATIONS = 1.96
"""Standard deviations that chance explains in 95 of 100 samples."""

_ISOLATES = dict.fromkeys(range(0x2066, 0x206A))


def summary(results: Results, lines: Sequence[Line], averages: Sequence[Line]) -> list[str]:
    """What the numbers say, most important first; names are not marked up, the page does that."""
    known = [line for line in lines if line.numbers]
    if not known:
        return ["Nothing has been predicted yet."]
    deciding = list(averages) or known
    sentences = [_best_calibrated(results, deciding, known, averages), _most_accurate(results, deciding, known)]
    sentences += [_confidence(deciding, known), _few(known)]
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
    """A name between Unicode's isolates, so that right-to-left letters do not turn the sentence around it.

    Isolates of its own are left out: one that closes would end ours.
    """
    return f"\u2068{name.translate(_ISOLATES)}\u2069"


def _best_calibrated(
    results: Results, deciding: Sequence[Line], known: Sequence[Line], averages: Sequence[Line]
) -> str:
    best, *others = _ranked(deciding, "ece")
    where = f" on average over {len({line.dataset for line in known})} data sets" if averages else ""
    debiased = best.numbers["debiased_ece"].text
    words = f"{label(best, deciding)} has the lowest ECE{where}: {best.numbers['ece'].text} %, debiased {debiased} %"
    words += _next(results, "ece", best, others, deciding, known)
    words += "."
    if others and all(line.numbers["debiased_ece"].value <= 0 for line in (best, others[0])):
        # A difference of two plain ECEs may then be one of their biases, however small its p.
        words += " The debiased ECE of both is 0 or less: these images show no calibration error of either."
    if averages:
        own = {line.dataset: _ranked([o for o in known if o.dataset == line.dataset], "ece")[0] for line in known}
        count = sum(line.method == best.method and best.prompt in {line.prompt, OWN_PROMPT} for line in own.values())
        often = f"{count or 'none'} of the {len(own)}"
        if count == len(own):
            often = "both" if count == 2 else f"each of the {count}"
        words += f" It has the lowest ECE on {often} data sets."
    return words


def _most_accurate(results: Results, deciding: Sequence[Line], known: Sequence[Line]) -> str:
    best, *others = _ranked(deciding, "accuracy")
    shown = best.numbers["accuracy"].mean
    alike = [best, *_alike(others, "accuracy", shown)]
    if len(alike) > 1:
        who = "All methods" if len(alike) == len(deciding) > 2 else _listed(alike, deciding)
        return f"{who} share the highest accuracy: {shown} %."
    words = f"{label(best, deciding)} has the highest accuracy: {best.numbers['accuracy'].text} %"
    return f"{words}{_next(results, 'accuracy', best, others, deciding, known)}."


def _ranked(lines: Sequence[Line], metric: str) -> list[Line]:
    """The best first; equal ones in their order."""
    return sorted(lines, key=lambda line: cost(metric, line.numbers[metric].value))


def _alike(lines: Sequence[Line], metric: str, shown: str) -> list[Line]:
    return [line for line in lines if line.numbers[metric].mean == shown]


def _listed(lines: Sequence[Line], deciding: Sequence[Line]) -> str:
    """Their names; of many the first ones."""
    names = [label(line, deciding) for line in lines]
    if len(names) > _NAMED:
        names = [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _next(
    results: Results, metric: str, best: Line, others: Sequence[Line], deciding: Sequence[Line], known: Sequence[Line]
) -> str:
    """The runner-up, or all that share its place, and whether the difference to the first of them may be chance."""
    if not others:
        return ""
    alike = _alike(others, metric, others[0].numbers[metric].mean)
    words = (
        f"; next {'is' if len(alike) == 1 else 'are'} {_listed(alike, deciding)} with {alike[0].numbers[metric].mean} %"
    )
    return words + _surely(results, metric, best, others[0], known)


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


def _confidence(deciding: Sequence[Line], known: Sequence[Line]) -> str:
    values = [line.numbers["overconfidence"].value for line in deciding]
    chances = [_chance(line, known) for line in deciding]
    for sign, word in ((1, "over-confident"), (-1, "under-confident")):
        sizes = [sign * value for value in values]
        if all(size > _CALIBRATED for size in sizes):
            least, most = percent(min(sizes), 1), percent(max(sizes), 1)
            doubt = _doubt(sizes, chances)
            if len(sizes) == 1:
                return f"It is {word} by {most} points{doubt}."
            return f"All methods are {word}, by {least} to {most} points{doubt}."
    if all(abs(value) <= _CALIBRATED for value in values):
        return f"Mean confidence and accuracy differ by {percent(max(map(abs, values)), 1)} points at most."
    furthest = max(range(len(values)), key=lambda i: abs(values[i]))
    size, word = abs(values[furthest]), "over-confident" if values[furthest] > 0 else "under-confident"
    doubt = _doubt([size], [chances[furthest]])
    return f"{label(deciding[furthest], deciding)} is furthest off: {word} by {percent(size, 1)} points{doubt}."


def _doubt(sizes: Sequence[float], chances: Sequence[float]) -> str:
    """What chance explains, where one of the sizes is no larger."""
    if all(size > chance for size, chance in zip(sizes, chances, strict=True)):
        return ""
    return f"; with so few images, up to {percent(max(chances), 1)} points may be chance"


def _chance(line: Line, known: Sequence[Line]) -> float:
    """How far the accuracy of a calibrated method may lie from its mean confidence, in 95 of 100 samples at most.

    The variance of a mean of independent hits is largest if all have the same probability, so that this is a bound.
    """
    own = by_method(known)[line.method, line.prompt] if line.dataset is None else [line]
    accuracies = [(each.numbers["accuracy"].value, each.images) for each in own]
    return _DEVIATIONS * math.sqrt(sum(a * (1 - a) / images for a, images in accuracies)) / len(own)
