"""The bench that parts share: a folder per case, evaluations in forked processes, and what they are compared with."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

from torture.forking import Ended, adopt_orphans, end, start
from torture.records import Case, Outcome
from torture.scenarios import SCENARIOS, Scenario, Where, prepare
from torture.shim import Shim

Work = Callable[[], object]

STRIDE = 37
"""Between the calls of successive cases; a prime, so that every call has its turn."""


class Bench:
    """A warm process from which cases are forked.

    Attributes:
        images: that all cases read.
    """

    def __init__(self, folder: Path, shim: Shim) -> None:
        adopt_orphans()
        self.folder, self.shim = folder, shim
        self.images = prepare(folder)
        self._counts: dict[str, tuple[int, float]] = {}

    def where(self, name: str) -> Where:
        """A place for a case; see :meth:`forget`."""
        return Where.under(self.folder / name, self.images)

    def forget(self, name: str) -> None:
        """Delete what a case left; what is deleted is not counted."""
        self.disarm()
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def processes(
        self, works: Sequence[Work], arm: Work | None = None, disturb: Callable[[Sequence[int]], None] | None = None
    ) -> Ended:
        """Do ``works`` at the same time in forked processes of one group.

        ``arm`` sets the shim before they are forked, so that they share its count; ``disturb`` is given their numbers.
        """
        said = self.folder / "said"
        if arm is not None:
            arm()
        children = [start(works[0], said)]
        children += [start(work, said, group=children[0]) for work in works[1:]]
        if disturb is not None:
            disturb(children)
        return end(children, said)

    def disarm(self) -> None:
        """The shim counts nothing any more; its next case has another folder."""
        self.shim.arm(self.folder / "nowhere")

    @cached_property
    def expected(self) -> dict[str, dict[str, bytes]]:
        """Of each scenario, all files of an unbroken run."""
        return {scenario.name: self.where(f"warm-up/{scenario.name}").found() for scenario in SCENARIOS}

    def calls(self, scenario: Scenario) -> int:
        """How many system calls write in an unbroken run."""
        return self._counted(scenario)[0]

    def seconds(self, scenario: Scenario) -> float:
        """How long an unbroken run takes."""
        return self._counted(scenario)[1]

    def _counted(self, scenario: Scenario) -> tuple[int, float]:
        if scenario.name in self._counts:
            return self._counts[scenario.name]
        started = time.monotonic()
        ended = self.processes(
            [partial(scenario.run, self.where("counted"))], partial(self.shim.arm, self.folder / "counted")
        )
        assert ended.codes == (0,), ended.said
        seconds, calls = time.monotonic() - started, self.shim.calls
        self.disarm()
        self.forget("counted")
        self._counts[scenario.name] = calls, seconds
        return calls, seconds

    def resumed(self, scenario: Scenario, where: Where, *, whole_cache: bool = True) -> tuple[str, str]:
        """Give the command again, undisturbed: ("", "") if all is as after an unbroken run, else what is wrong.

        Without ``whole_cache``, entries of the cache may be missing: an evaluation goes on without one it cannot write.
        """
        self.disarm()
        ended = self.processes([partial(scenario.run, where)])
        if ended.hung:
            return "hangs when it is resumed", ended.said
        if ended.codes != (0,):
            return "cannot be resumed", ended.said
        return self.compared(scenario, where, whole_cache=whole_cache)

    def compared(
        self, scenario: Scenario, where: Where, *, whole_cache: bool = True, looks: bool = True
    ) -> tuple[str, str]:
        """As :meth:`resumed`, without running anything.

        Without ``looks``, the lists of what image files look like are left out: where times are coarse, so are theirs.
        """
        found, expected = where.found(), self.expected[scenario.name]
        if not looks:
            found, expected = (
                {name: data for name, data in each.items() if not name.startswith("cache/images/")}
                for each in (found, expected)
            )
        if not whole_cache:
            expected = {name: data for name, data in expected.items() if name.startswith("run/") or name in found}
        if found == expected:
            return "", ""
        other = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        return "other bytes", ", ".join(other)


def judged(case: Case, fine: str, wrong: tuple[str, str], started: float) -> Outcome:
    """The outcome of a case that began at ``started``: ``fine``, unless something is wrong."""
    result, note = wrong
    return Outcome(case, result or fine, not result, note[-2000:], round(time.monotonic() - started, 3))
