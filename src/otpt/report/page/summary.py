"""The results in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence

from otpt.metrics import percent
from otpt.report.page.numbers import OWN_PROMPT, Line, better
from otpt.report.results import Results

_CALIBRATED = 0.01
"""Over-confidence below this fraction is called none."""


def summary(results: Results, lines: Sequence[Line], averages: Sequence[Line]) -> list[str]:
    """What the numbers say, most important first; names are not marked up, the page does that."""
    known = [line for line in lines if line.numbers]
    if not known:
        return ["Nothing has been predicted yet."]
    deciding = list(averages) or known
    sentences = [_best_calibrated(deciding, known, averages), _most_accurate(deciding, averages)]
    sentences.append(_confidence(deciding))
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


def _best_calibrated(deciding: Sequence[Line], known: Sequence[Line], averages: Sequence[Line]) -> str:
    best = _best(deciding, "ece")
    where = f" on average over {len({line.dataset for line in known})} data sets" if averages else ""
    words = f"{label(best, deciding)} is best calibrated{where}: its ECE is {best.numbers['ece'].text} %"
    if len(deciding) > 1:
        second = _best([line for line in deciding if line is not best], "ece")
        words += f"; next is {label(second, deciding)} with {second.numbers['ece'].text} %"
    words += "."
    if averages:
        own = {line.dataset: _best([o for o in known if o.dataset == line.dataset], "ece") for line in known}
        count = sum(line.method == best.method and best.prompt in {line.prompt, OWN_PROMPT} for line in own.values())
        words += f" It has the lowest ECE on {count} of {len(own)}."
    return words


def _most_accurate(deciding: Sequence[Line], averages: Sequence[Line]) -> str:
    best = _best(deciding, "accuracy")
    calibrated = _best(deciding, "ece")
    words = f"{label(best, deciding)} is most accurate: {best.numbers['accuracy'].text} %"
    if (best.method, best.prompt) != (calibrated.method, calibrated.prompt):
        words += f", {label(calibrated, deciding)} reaches {calibrated.numbers['accuracy'].text} %"
    return f"{words}."


def _confidence(deciding: Sequence[Line]) -> str:
    values = [line.numbers["overconfidence"].value for line in deciding]
    if all(value > _CALIBRATED for value in values):
        least, most = percent(min(values), 1), percent(max(values), 1)
        if len(values) == 1:
            return f"It is surer than it is right, by {most} points."
        return f"All methods are surer than they are right, by {least} to {most} points."
    if all(value < -_CALIBRATED for value in values):
        return f"No method is as sure as it is right; {percent(-min(values), 1)} points are missing at most."
    furthest = max(deciding, key=lambda line: abs(line.numbers["overconfidence"].value))
    value = furthest.numbers["overconfidence"].value
    side = "surer than it is right" if value > 0 else "less sure than it is right"
    return f"{label(furthest, deciding)} is furthest from its own claims: {percent(abs(value), 1)} points {side}."
