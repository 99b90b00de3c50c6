"""Evaluations that are killed: at every system call that writes, in the middle of a write, at any moment.

Each case kills one or several processes of an evaluation (one to three times), gives the command again, and compares
every byte of the run and of the cache with those of an unbroken run. Others that work on the same folder must finish,
no process may be left, and nothing may block the resumed one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random

from torture.bench import STRIDE, Bench, judged
from torture.forking import INTERRUPTED, Ended
from torture.records import Case, Outcome, PartOptions, numbered
from torture.scenarios import GROWING, SCENARIOS, Scenario, Where
from torture.shim import Action

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_WAYS = ("SIGKILL", "torn", "SIGINT", "SIGTERM")
_SIDE_BY_SIDE, _WORKERS = "side by side", "workers"
_TOPOLOGIES = ((2, _SIDE_BY_SIDE), (4, _SIDE_BY_SIDE), (2, _WORKERS), (4, _WORKERS))


@dataclass(frozen=True)
class _Setting:
    """What is killed: a scenario in one process, in several on one folder, or in one with workers."""

    scenario: Scenario
    processes: int = 1
    form: str = _SIDE_BY_SIDE

    def start(self, where: Where) -> list[partial[None]]:
        """The work of each process."""
        if self.form == _WORKERS:
            return [partial(self.scenario.run, where, self.processes)]
        return [partial(self.scenario.run, where) for _ in range(self.processes)]


def cases(options: PartOptions, bench: Bench) -> Iterator[Outcome]:
    """The cases, in the process that has the shim."""
    every = {f"at every write: {scenario.name}": scenario for scenario in SCENARIOS}
    writes = {
        f"at a write: {scenario.name}, {number} {form}": _Setting(scenario, number, form)
        for scenario in SCENARIOS
        for number, form in _TOPOLOGIES
    }
    moments = {
        f"at a moment: {number} {form if number > 1 else 'process'}": (number, form)
        for number, form in ((1, _SIDE_BY_SIDE), *_TOPOLOGIES)
    }
    for kind, seed, number in numbered(options, [*every, *writes, *moments]):
        random = Random(f"{kind}/{seed}")
        if kind in every:
            scenario = every[kind]
            # Every call of the scenario in each of the ways, in strides: a short campaign gets around, too.
            call = 1 + number // len(_WAYS) * STRIDE % bench.calls(scenario)
            way = _WAYS[number % len(_WAYS)]
            yield _at_calls(bench, kind, seed, _Setting(scenario), [(call, way, False)])
        elif kind in writes:
            setting = writes[kind]
            most = bench.calls(setting.scenario)
            rounds = random.choice((1, 1, 2, 3))
            chosen = [(random.randint(1, most), random.choice(_WAYS), random.random() < 0.3) for _ in range(rounds)]
            yield _at_calls(bench, kind, seed, setting, chosen)
        else:
            scenario = random.choice([each for each in SCENARIOS if each is not GROWING])
            yield _at_moment(bench, kind, seed, _Setting(scenario, *moments[kind]), random)


def _at_calls(bench: Bench, kind: str, seed: int, setting: _Setting, kills: Sequence[tuple[int, str, bool]]) -> Outcome:
    """Kill whoever makes the n-th writing call of all processes; or, with True, all of them then."""
    started, where, name = time.monotonic(), bench.where("case"), "case"
    told, killed, wrong = [], 0, ("", "")
    for call, way, everybody in kills:
        action = Action.TORN if way == "torn" else Action.SIGNAL
        value = 0 if way == "torn" else int(getattr(signal, way))
        arm = partial(bench.shim.arm, bench.folder / name, action, at=call, value=value, whole_group=everybody)
        ended = bench.processes(setting.start(where), arm)
        told.append(f"{way} at call {call} ({_shown(bench, where)}){' of all' if everybody else ''}")
        killed += any(ended.codes)
        wrong = _judge(ended, everybody=everybody, workers=setting.form == _WORKERS)
        if wrong[0]:
            break
    case = Case(kind, seed, "; ".join(told))
    wrong = wrong if wrong[0] else bench.resumed(setting.scenario, where)
    bench.forget(name)
    return judged(case, "killed, same bytes" if killed else "done before, same bytes", wrong, started)


def _at_moment(bench: Bench, kind: str, seed: int, setting: _Setting, random: Random) -> Outcome:
    started, where = time.monotonic(), bench.where("case")
    number = random.choice(_SIGNALS)
    everybody = random.random() < 0.3
    victim, fraction = random.randrange(setting.processes), random.random()
    seconds = bench.seconds(setting.scenario)

    def disturb(children: Sequence[int]) -> None:
        time.sleep(fraction * seconds)
        with suppress(ProcessLookupError):
            if everybody:
                os.killpg(children[0], number)
            else:
                os.kill(children[victim % len(children)], number)

    ended = bench.processes(setting.start(where), bench.disarm, disturb)
    told = f"{signal.Signals(number).name} to {'all' if everybody else 'one'} after {fraction:.3f}"
    case = Case(kind, seed, f"{setting.scenario.name}, {told}")
    wrong = _judge(ended, everybody=everybody, workers=setting.form == _WORKERS)
    wrong = wrong if wrong[0] else bench.resumed(setting.scenario, where)
    bench.forget("case")
    fine = "killed, same bytes" if any(ended.codes) else "done before, same bytes"
    return judged(case, fine, wrong, started)


def _shown(bench: Bench, where: Where) -> str:
    return bench.shim.last.replace(str(where.run.parent), "").strip() or "not reached"


def _judge(ended: Ended, *, everybody: bool, workers: bool) -> tuple[str, str]:
    """Those that were not killed have finished; nobody hangs, is left alone, or ends otherwise."""
    deaths = {-signal.SIGKILL, -signal.SIGTERM, INTERRUPTED}
    if ended.hung:
        return "hangs", ended.said
    if ended.orphans:
        return "orphan", ended.said
    # The first process of several workers goes on without the one that was killed, or says that it cannot.
    allowed = {0, 2} if workers else {0}
    if any(code not in deaths | allowed for code in ended.codes):
        return "unexpected end", f"{ended.codes} {ended.said}"
    if not everybody and sum(code in deaths for code in ended.codes) > 1:
        return "killed others", f"{ended.codes} {ended.said}"
    return "", ""
