"""A part from beginning to end: within the bounds that are given, with a line now and then, to a tally."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from itertools import islice

from torture.parts import OWN_CLOCK
from torture.records import Outcome, Part, PartOptions
from torture.results import Tally

_SAY_EVERY = 10.0  # seconds


def bounded(part: Part, options: PartOptions, *, clock: bool = True) -> Iterator[Outcome]:
    """The outcomes of the part until the number of cases or, with ``clock``, its minutes are used up."""
    end = None if options.minutes is None or not clock else time.monotonic() + 60 * options.minutes
    outcomes = part(options)
    try:
        for outcome in islice(outcomes, options.cases):
            yield outcome
            if end is not None and time.monotonic() >= end:
                return
    finally:
        if isinstance(outcomes, Generator):
            outcomes.close()  # ends the processes that a part keeps


def run_part(
    name: str,
    part: Part,
    options: PartOptions,
    say: Callable[[str], None],
    tally: Tally | None = None,
    save: Callable[[Tally], None] | None = None,
) -> Tally:
    """Run the part; failing cases are told at once. The counts are added to ``tally``, if given.

    ``save`` is called now and then: a campaign that is itself killed has counted what it did.
    """
    tally = tally or Tally(name)
    said = time.monotonic()
    for outcome in bounded(part, options, clock=name not in OWN_CLOCK):
        tally.add(outcome)
        if not outcome.ok:
            case = outcome.case
            say(f"FAILED {case.kind} (seed {case.seed}; {case.detail}): {outcome.result}. {outcome.note}")
        if time.monotonic() - said > _SAY_EVERY:
            said = time.monotonic()
            say(f"{tally.cases} cases, {tally.failing.total()} failing, {tally.seconds:.0f} s")
            if save is not None:
                save(tally)
    return tally
