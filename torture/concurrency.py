"""Several at once: writers of one run, evaluators on one cache, eviction while others read, versions that do not fit.

Everybody who may finish finishes, with the bytes of one who is alone; who may not is told why in one sentence.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

from oracles.runs.evaluation_bench import files  # type: ignore[import-not-found]
from oracles.runs.growing_bench import STREAM  # type: ignore[import-not-found]

from otpt.errors import OtptError
from otpt.evaluation import config as config_module
from otpt.features import FeatureCache
from torture.bench import Bench, judged
from torture.forking import REFUSED, Ended
from torture.ray_cases import NoClusterError, has_ray, ray_cases
from torture.records import Case, Outcome, PartOptions, numbered
from torture.scenarios import CACHED, PLAIN, SCENARIOS, Scenario, Step, Where

_FINE = ("", "")
_PIECES = (
    Scenario("first", [Step(["zero-shot"], 3), Step(["zero-shot", STREAM], 5, (("seeds", (0, 1)),))]),
    Scenario("second", [Step(["zero"], 4), Step(["zero-shot", "zero"], 6, (("seeds", (1,)),))]),
)
"""What two people ask of one run: images, methods and seeds overlap."""
_SHARING = tuple(
    replace(CACHED, name=f"sharing {method}", steps=[Step(["zero-shot", method], 3)])
    for method in ("o-tpt", "tpt", "zero")
)
_SMALL_CACHE = 4000  # bytes: three or four entries


def cases(options: PartOptions, bench: Bench) -> Iterator[Outcome]:
    """The cases, in the process that has the shim."""
    trials = _Trials(bench)
    kinds = {**trials.kinds, **ray_cases(options.folder)}
    for kind, seed, number in numbered(options, list(kinds)):
        if kind not in trials.kinds and (not has_ray() or (number and options.kind is None)):
            continue  # a cluster takes a minute: once, or when it is asked for
        started = time.monotonic()
        try:
            detail, fine, wrong = kinds[kind](Random(f"{kind}/{seed}"))
        except NoClusterError:
            continue
        bench.forget("case")
        yield judged(Case(kind, seed, detail), fine, wrong, started)


Trial = Callable[[Random], tuple[str, str, tuple[str, str]]]
"""What is tried once: (what the random numbers chose, what came of it, what is wrong)."""


class _Trials:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.kinds: dict[str, Trial] = {
            "one command, several writers": self._same,
            "overlapping commands": self._overlapping,
            "overlapping commands in threads": self._threads,
            "one cache, several evaluators": self._one_cache,
            "eviction while others read": self._eviction,
            "another version at the same time": partial(self._misfit, _other_version),
            "other settings at the same time": partial(self._misfit, _other_settings),
        }

    def _same(self, random: Random) -> tuple[str, str, tuple[str, str]]:
        scenario, writers = random.choice(SCENARIOS), random.randint(2, 6)
        where = self.bench.where("case")
        ended = self.bench.processes(writers * [partial(scenario.run, where)], self.bench.disarm)
        wrong = self._all_done(ended) or self.bench.compared(scenario, where)
        return f"{writers} × {scenario.name}", "same bytes", wrong

    @cached_property
    def _pieces(self) -> list[Any]:
        where = self.bench.where("pieces")
        for piece in _PIECES:
            piece.run(where)
        return _rows_and_scores(where.run)

    def _overlapping(self, random: Random) -> tuple[str, str, tuple[str, str]]:
        where = self.bench.where("case")
        works = [partial(_late, random.random() * 0.3, piece, where) for piece in _PIECES]
        ended = self.bench.processes(works, self.bench.disarm)
        return "", "same rows and scores", self._all_done(ended) or self._compared_pieces(where)

    def _threads(self, random: Random) -> tuple[str, str, tuple[str, str]]:
        where = self.bench.where("case")
        works = [partial(_late, random.random() * 0.1, piece, where) for piece in _PIECES]
        ended = self.bench.processes([partial(_in_threads, works)], self.bench.disarm)
        return "", "same rows and scores", self._all_done(ended) or self._compared_pieces(where)

    def _compared_pieces(self, where: Where) -> tuple[str, str]:
        return _FINE if _rows_and_scores(where.run) == self._pieces else ("other rows or scores", "")

    @cached_property
    def _alone(self) -> dict[str, dict[str, bytes]]:
        found = {}
        for scenario in _SHARING:
            where = self.bench.where(scenario.name)
            scenario.run(where)
            found[scenario.name] = files(where.run)
        return found

    def _one_cache(self, random: Random) -> tuple[str, str, tuple[str, str]]:
        wheres = self._places()
        works = [partial(_late, random.random() * 0.2, each, where) for each, where in wheres.items()]
        return "", "same bytes", self._judge_sharing(self.bench.processes(works, self.bench.disarm), wheres)

    def _eviction(self, random: Random) -> tuple[str, str, tuple[str, str]]:
        """A bound that holds a part of the entries, and one who clears the cache over and over."""
        wheres = self._places()
        works = [partial(_bounded, each, where) for each, where in wheres.items()]
        folder, pause = next(iter(wheres.values())).cache, random.uniform(0.001, 0.02)
        ended = self.bench.processes([*works, partial(_clear, folder, pause)], self.bench.disarm)
        return "", "same bytes", self._judge_sharing(ended, wheres)

    def _places(self) -> dict[Scenario, Where]:
        base = self.bench.where("case")
        return {each: replace(base, run=base.run.with_name(each.name)) for each in _SHARING}

    def _judge_sharing(self, ended: Ended, wheres: dict[Scenario, Where]) -> tuple[str, str]:
        other = [each.name for each, where in wheres.items() if files(where.run) != self._alone[each.name]]
        return self._all_done(ended) or (("other bytes", ", ".join(other)) if other else _FINE)

    def _misfit(self, other: Callable[[Where], None], random: Random) -> tuple[str, str, tuple[str, str]]:
        """Two that begin at about the same time and do not fit: one of them makes the run, the other is told why."""
        where = self.bench.where("case")
        works: list[Callable[[], None]] = [partial(_late, random.random() * 0.1, PLAIN, where), partial(other, where)]
        ended = self.bench.processes(works, self.bench.disarm)
        if sorted(map(str, ended.codes)) != ["0", str(REFUSED)] or "another configuration" not in ended.sentence:
            return "", "", ("unexpected end", f"{ended.codes} {ended.said}")
        if ended.codes[0] == 0:
            return "", "the other one refused, same bytes", self.bench.compared(PLAIN, where)
        return "", "the first one refused", _FINE

    @staticmethod
    def _all_done(ended: Ended) -> tuple[str, str] | None:
        return ("not finished", f"{ended.codes} {ended.said}") if any(ended.codes) or ended.hung else None


def _late(seconds: float, scenario: Scenario, where: Where) -> None:
    time.sleep(seconds)
    scenario.run(where)


def _in_threads(works: Sequence[Callable[[], None]]) -> None:
    problems: list[BaseException] = []

    def kept(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            problems.append(error)

    threads = [Thread(target=kept, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def _bounded(scenario: Scenario, where: Where) -> None:
    scenario.run(where, cache_bytes=_SMALL_CACHE)


def _clear(folder: Path, pause: float) -> None:
    cache = FeatureCache(folder)
    for _ in range(20):
        cache.clear()
        time.sleep(pause)


def _other_version(where: Where) -> None:
    setattr(config_module, "__version__", "0.0.0")  # noqa: B010  it is not among the module's names
    PLAIN.run(where)


def _other_settings(where: Where) -> None:
    replace(PLAIN, shard_size=3).run(where)


def _rows_and_scores(folder: Path) -> list[Any]:
    """What does not tell who came first: of two that begin at once, either may be the first."""
    try:
        scores = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["scores"]
    except (OSError, ValueError) as error:
        raise OtptError(f"no metrics: {error}") from None
    return [files(folder, suffix=".parquet"), sorted(map(repr, scores))]
