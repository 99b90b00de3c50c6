"""Summary of the results in a few sentences, with their significance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from otpt.metrics import METRICS, percent
from otpt.report.comparison import Difference, bias_words, correct_family, gap
from otpt.report.page.lines import Line
from otpt.report.results import Results
from otpt.report.selection import AVERAGE
from otpt.report.tables import few_images_note

_NAMED = 4
"""Maximum number of methods named in a sentence."""
_TESTED = 20
"""Maximum number of lines that the best one is tested against."""
_CALIBRATED = 0.01
"""Over-confidence below which a method counts as calibrated."""


def summary(results: Results, lines: Sequence[Line]) -> list[str]:
    """Return summary sentences, most important first; names are enclosed in Unicode isolates."""
    by_dataset = [line for line in lines if line.numbers and line.dataset != AVERAGE]
    if not by_dataset:
        return ["Nothing has been predicted yet."]
    deciding = [line for line in lines if line.dataset == AVERAGE] or by_dataset
    sentences = [
        _best_calibrated(results, deciding, by_dataset),
        _most_accurate(results, deciding),
        _confidence(deciding, by_dataset),
    ]
    if caution := few_images_note(min(line.images for line in by_dataset)):
        sentences.append(caution)
    if unreadable := max(line.unreadable for line in lines):
        sentences.append(f"Some images could not be read ({unreadable} of one data set); they count nowhere.")
    return sentences


def isolated(name: str) -> str:
    """Enclose a name in Unicode isolates, so that right-to-left letters do not reorder the sentence."""
    return f"\u2068{name.translate(dict.fromkeys(range(0x2066, 0x206A)))}\u2069"


def _best_calibrated(results: Results, deciding: Sequence[Line], by_dataset: Sequence[Line]) -> str:
    best, *worse = _ranked(deciding, "ece")
    datasets = list(dict.fromkeys(line.dataset for line in by_dataset))
    is_average = best.dataset == AVERAGE
    where = f" on average over {len(datasets)} data sets" if is_average else ""
    numbers = best.numbers["ece"].text, best.numbers["debiased_ece"].mean
    words = f"{_listed([best], deciding)} has the lowest ECE{where}: {numbers[0]} %, debiased {numbers[1]} %"
    words += f"{_runner_up(results, 'ece', best, worse, deciding)}."
    if worse:
        ece, debiased = (_gap(results, metric, best, worse) for metric in ("ece", "debiased_ece"))
        if ece is not None and debiased is not None:
            words += "".join(f" {clause[:1].upper()}{clause[1:]}." for clause in bias_words(ece, debiased))
    if is_average:
        lowest = [_ranked([line for line in by_dataset if line.dataset == name], "ece")[0] for name in datasets]
        count = sum(line.keys[0] in best.keys for line in lowest)
        words += f" It has the lowest ECE on {count or 'none'} of the {len(datasets)} data sets."
    return words


def _most_accurate(results: Results, deciding: Sequence[Line]) -> str:
    best, *worse = _ranked(deciding, "accuracy")
    accuracy = best.numbers["accuracy"]
    if alike := _alike(worse, "accuracy", best):
        return f"{_listed([best, *alike], deciding)} share the highest accuracy: {accuracy.mean} %."
    words = f"{_listed([best], deciding)} has the highest accuracy: {accuracy.text} %"
    return f"{words}{_runner_up(results, 'accuracy', best, worse, deciding)}."


def _runner_up(results: Results, metric: str, best: Line, worse: Sequence[Line], deciding: Sequence[Line]) -> str:
    """Describe the runners-up and the significance of their difference from the best."""
    if not worse:
        return ""
    alike = _alike(worse, metric, worse[0])
    verb = "is" if len(alike) == 1 else "are"
    words = f"; next {verb} {_listed(alike, deciding)} with {alike[0].numbers[metric].mean} %"
    difference = _gap(results, metric, best, worse)
    if difference is None:
        return words
    if difference.is_noise:
        return f"{words}, a difference within noise ({difference.words})"
    low, high = sorted((abs(difference.low), abs(difference.high)))
    return f"{words}: they differ by {percent(low)} to {percent(high)} points ({difference.words})"


def _gap(results: Results, metric: str, best: Line, worse: Sequence[Line]) -> Difference | None:
    """Return the test of the best line against the next one, corrected for all others as in the tables."""
    tests = [gap(results, metric, best.keys, line.keys) for line in worse[:_TESTED]]
    paired = [test for test in tests if test is not None]
    return correct_family(paired)[0] if len(paired) == len(tests) else tests[0]


def _confidence(deciding: Sequence[Line], by_dataset: Sequence[Line]) -> str:
    """Describe the over- or under-confidence of all methods, or of the worst one."""
    lines = sorted(deciding, key=lambda line: abs(line.numbers["overconfidence"].value))
    values = [line.numbers["overconfidence"].value for line in lines]
    sizes = [percent(abs(value), 1) for value in values]
    if abs(values[-1]) <= _CALIBRATED:
        return f"Mean confidence and accuracy differ by {sizes[-1]} points at most."
    word = "over-confident" if values[-1] > 0 else "under-confident"
    if abs(values[0]) > _CALIBRATED and len({value > 0 for value in values}) == 1:
        who = "It is" if len(lines) == 1 else "All methods are"
        words = f"{who} {word} by {sizes[-1] if sizes[0] == sizes[-1] else f'{sizes[0]} to {sizes[-1]}'} points"
    else:
        lines, values = lines[-1:], values[-1:]
        words = f"{_listed(lines, deciding)} is furthest off: {word} by {sizes[-1]} points"
    chances = [_chance(line, by_dataset) for line in lines]
    if any(abs(value) <= chance for value, chance in zip(values, chances, strict=True)):
        words += f"; with few images, up to {percent(max(chances), 1)} points may be chance"
    return f"{words}."


def _chance(line: Line, by_dataset: Sequence[Line]) -> float:
    """Return a 95 % bound of |accuracy − mean confidence| of a calibrated method.

    The variance of a mean of independent hits is largest if all have the same probability, so this is a bound.
    """
    variances = []
    for part in by_dataset:
        if part.keys[0] in line.keys:
            accuracy = part.numbers["accuracy"].value
            variances.append(accuracy * (1 - accuracy) / part.images)
    return 1.96 * math.sqrt(sum(variances)) / len(variances)


def _ranked(lines: Sequence[Line], metric: str) -> list[Line]:
    """Sort lines, best first; ties keep their order."""
    return sorted(lines, key=lambda line: METRICS[metric].cost(line.numbers[metric].value))


def _alike(lines: Sequence[Line], metric: str, other: Line) -> list[Line]:
    """Return the lines with the same printed mean."""
    return [line for line in lines if line.numbers[metric].mean == other.numbers[metric].mean]


def _listed(lines: Sequence[Line], deciding: Sequence[Line]) -> str:
    """Join the names of methods, with prompts if they differ; long lists are shortened."""
    has_prompts = len({line.prompt for line in deciding}) > 1
    names = []
    for line in lines:
        prompt = f" with “{isolated(line.prompt)}”" if has_prompts else ""
        names.append(isolated(line.method) + prompt)
    if len(names) > _NAMED:
        names = [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
