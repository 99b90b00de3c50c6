"""Disks that fail: full, read-only, broken, without links, with coarse times, late or with a clock that jumps; and rot.

An evaluation ends in good order: done, or with one sentence. The command again gives the bytes of an unbroken run.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from random import Random

from torture.bench import STRIDE, Bench, judged
from torture.damage import Damages
from torture.forking import REFUSED, Ended
from torture.records import Case, Outcome, PartOptions, numbered
from torture.scenarios import CACHED, PLAIN, SCENARIOS, Scenario
from torture.shim import Action, Calls

_FAULTS = {
    "full disk": (Action.FAIL_FROM, errno.ENOSPC, Calls.WRITES),
    "a write that fails": (Action.FAIL_ONCE, errno.EIO, Calls.WRITES),
    "read-only": (Action.FAIL_FROM, errno.EROFS, Calls.WRITES),
    "a read that fails": (Action.FAIL_ONCE, errno.EIO, Calls.READS),
}
_JUMPS = (-10 * 365 * 86400, -7200, 7200, 10 * 365 * 86400)
_IMITATED = ("no hard links", "coarse times", "late visibility", "clock jump")
_READS_OF_A_WRITE = 6  # calls that read for each one that writes, about; those beyond the last are not reached


def cases(options: PartOptions, bench: Bench) -> Iterator[Outcome]:
    """The cases, in the process that has the shim."""
    damages = Damages(bench)
    faults = {f"{fault}: {scenario.name}": (fault, scenario) for fault in _FAULTS for scenario in SCENARIOS}
    imitated = {f"{each}: {scenario.name}": (each, scenario) for each in _IMITATED for scenario in SCENARIOS}
    mounted: dict[str, Callable[[Bench, str, int], Outcome]] = {"small tmpfs": _small, "read-only tmpfs": _read_only}
    for kind, seed, number in numbered(options, [*faults, *imitated, *damages.kinds, *mounted]):
        if kind in faults:
            yield _fault(bench, kind, seed, number, *faults[kind])
        elif kind in imitated:
            yield _imitated(bench, kind, seed, *imitated[kind])
        elif kind in damages.kinds:
            yield damages(kind, seed)
        elif _can_mount(bench.folder / "mounted"):
            yield mounted[kind](bench, kind, seed)


def _fault(bench: Bench, kind: str, seed: int, number: int, fault: str, scenario: Scenario) -> Outcome:
    """The n-th call fails, every one in turn; then the command again."""
    started, where = time.monotonic(), bench.where("case")
    action, value, calls = _FAULTS[fault]
    most = bench.calls(scenario) * (_READS_OF_A_WRITE if calls is Calls.READS else 1)
    call = 1 + number * STRIDE % most
    arm = partial(bench.shim.arm, bench.folder / "case", action, at=call, value=value, calls=calls)
    ended = bench.processes([partial(scenario.run, where)], arm)
    shown = bench.shim.last.replace(str(bench.folder / "case"), "") or "not reached"
    fine, wrong = _judge(ended)
    wrong = wrong if wrong[0] else bench.resumed(scenario, where, whole_cache=False)
    bench.forget("case")
    return judged(Case(kind, seed, f"call {call} ({shown})"), fine, wrong, started)


def _imitated(bench: Bench, kind: str, seed: int, what: str, scenario: Scenario) -> Outcome:
    """Two processes on one folder of such a file system."""
    started, where, random = time.monotonic(), bench.where("case"), Random(f"{kind}/{seed}")
    jump = random.choice(_JUMPS)
    call = random.randint(1, bench.calls(scenario))

    def arm() -> None:
        folder = bench.folder / "case"
        if what == "clock jump":
            bench.shim.arm(folder, Action.JUMP, at=call, value=jump)
        else:
            bench.shim.arm(folder)
        bench.shim.imitate(
            no_links=what == "no hard links",
            coarse_seconds=2 if what == "coarse times" else 0,
            hidden_milliseconds=random.choice((50, 300)) if what == "late visibility" else 0,
        )

    ended = bench.processes(2 * [partial(scenario.run, where)], arm)
    bench.disarm()
    wrong = ("", "") if ended.codes == (0, 0) else ("not finished", f"{ended.codes} {ended.said}")
    wrong = wrong if wrong[0] else bench.compared(scenario, where, whole_cache=False, looks=what != "coarse times")
    bench.forget("case")
    detail = f"{jump} s at call {call}" if what == "clock jump" else ""
    return judged(Case(kind, seed, detail), "same bytes", wrong, started)


def _judge(ended: Ended) -> tuple[str, tuple[str, str]]:
    """Done, or one sentence; a warning of the cache may go before."""
    if ended.hung:
        return "", ("hangs", ended.said)
    if ended.codes == (0,):
        return "done, same bytes", ("", "")
    if ended.codes == (REFUSED,) and "Traceback" not in ended.said and ended.sentence.startswith("otpt: "):
        return "one sentence; resumed, same bytes", ("", "")
    return "", ("unexpected end", f"{ended.codes} {ended.said}")


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@cache
def _can_mount(folder: Path) -> bool:
    folder.mkdir()
    if os.geteuid() != 0 or not _mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)):
        return False
    subprocess.run(["umount", str(folder)], check=True)
    return True


def _small(bench: Bench, kind: str, seed: int) -> Outcome:
    """A real disk with room for a part of the run; then with more."""
    random = Random(f"{kind}/{seed}")
    scenario = random.choice((PLAIN, CACHED))
    pages = random.randint(1, 16)
    return _on_tmpfs(bench, Case(kind, seed, f"{scenario.name}, {4 * pages} KiB"), scenario, f"size={4 * pages}k")


def _read_only(bench: Bench, kind: str, seed: int) -> Outcome:
    """A folder that can only be read, empty at first."""
    scenario = Random(f"{kind}/{seed}").choice(SCENARIOS)
    return _on_tmpfs(bench, Case(kind, seed, scenario.name), scenario, "size=16m,ro")


def _on_tmpfs(bench: Bench, case: Case, scenario: Scenario, options: str) -> Outcome:
    started, where = time.monotonic(), bench.where("mounted")
    folder = str(bench.folder / "mounted")
    assert _mount("-t", "tmpfs", "-o", options, "tmpfs", folder)
    try:
        fine, wrong = _judge(bench.processes([partial(scenario.run, where)], bench.disarm))
        _mount("-o", "remount,rw,size=16m", folder)
        wrong = wrong if wrong[0] else bench.resumed(scenario, where, whole_cache=False)
    finally:
        subprocess.run(["umount", folder], check=True)
    return judged(case, fine, wrong, started)
