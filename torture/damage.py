"""Files that rot: bits flip, ends are lost, blocks are zeroed, files take each other's place.

What is read from a damaged file is what was written; or it is reported, and recomputed or refused in one sentence.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from random import Random

import numpy as np
from oracles.data.labelled import facts, labelled  # type: ignore[import-not-found]

from otpt.calibration import fit_calibration, read_calibration
from otpt.errors import OtptError
from otpt.features import FeatureCache
from otpt.runs import Run
from torture.bench import Bench, judged
from torture.records import Case, Outcome
from torture.scenarios import CACHED, GROWING, Scenario

_FOUND, _UNCHANGED, _WRONG = "found", "harmless", ("wrong content", "")
_BLOCK = 512  # bytes of a disk's sector


def damaged(path: Path, random: Random, others: Sequence[Path] = ()) -> str:
    """Damage a file in a random way; which, in words."""
    data = bytearray(path.read_bytes())
    ways = ["bit", "byte", "cut", "zeros", "longer", "empty", *(["another file"] if others else [])]
    way, at = random.choice(ways), random.randrange(len(data))
    if way == "bit":
        data[at] ^= 1 << random.randrange(8)
    elif way == "byte":
        data[at] = (data[at] + random.randrange(1, 256)) % 256
    elif way == "cut":
        del data[at:]
    elif way == "zeros":
        data[at : at + _BLOCK] = bytes(len(data[at : at + _BLOCK]))
    elif way == "longer":
        data += bytes(random.randrange(256) for _ in range(random.randrange(1, 40)))
    elif way == "empty":
        data.clear()
    else:
        data = bytearray(random.choice(others).read_bytes())
    path.write_bytes(data)
    return f"{way} at {at} of {path.name}"


class Damages:
    """Cases by kind; each damages one file of a finished run, cache or calibration."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.kinds: dict[str, Callable[[Random], tuple[str, str, tuple[str, str]]]] = {
            "damaged shard": self._shard,
            "damaged shard, resumed": partial(self._resumed, GROWING, "run", "*.parquet"),
            "damaged cache entry": self._entry,
            "damaged cache, resumed": partial(self._resumed, CACHED, "cache", "*.*"),
            "damaged configuration": self._configuration,
            "damaged calibration": self._calibrated,
        }

    def __call__(self, kind: str, seed: int) -> Outcome:
        """One case: (what was done, what came of it, what is wrong)."""
        started = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            detail, result, wrong = self.kinds[kind](Random(f"{kind}/{seed}"))
        self._bench.forget("case")
        return judged(Case(kind, seed, detail), result, wrong, started)

    @cached_property
    def _calibration(self) -> Path:
        path = self._bench.folder / "calibration.json"
        probabilities, labels = labelled(60, seed=41)
        fit_calibration(probabilities, labels, facts(), origin={"dataset": "some", "seed": 0}).write(path)
        return path

    def _copy(self, scenario: Scenario) -> Path:
        folder = self._bench.folder / "case"
        shutil.copytree(self._bench.folder / "warm-up" / scenario.name, folder)
        return folder

    def _shard(self, random: Random) -> tuple[str, str, tuple[str, str]]:
        folder = self._copy(GROWING) / "run"
        shards = sorted(folder.rglob("*.parquet"))
        path = random.choice(shards)
        run = Run(folder)
        place = next(
            (dataset, seed, column)
            for dataset, seed, column in run.everything()
            if run.folder_of(dataset, seed, column) == path.parent
        )
        first, stop = (int(each) for each in path.stem.split("-"))
        before = run.read(*place, first, stop)
        detail = damaged(path, random, [each for each in shards if each.read_bytes() != path.read_bytes()])
        after = run.read(*place, first, stop)
        if after is None:
            return detail, _FOUND, ("", "")
        same = before is not None and after.table.equals(before.table)
        return detail, _UNCHANGED, ("", "") if same else _WRONG

    def _entry(self, random: Random) -> tuple[str, str, tuple[str, str]]:
        folder = self._copy(CACHED) / "cache"
        entries = sorted(folder.rglob("*.features"))
        path, cache = random.choice(entries), FeatureCache(folder)
        before = cache.get(path.stem, 1)
        detail = damaged(path, random, [each for each in entries if each != path])
        after = cache.get(path.stem, 1)
        if after is None:
            return detail, _FOUND, ("", "")
        same = before is not None and np.array_equal(before, after)
        return detail, _UNCHANGED, ("", "") if same else _WRONG

    def _configuration(self, random: Random) -> tuple[str, str, tuple[str, str]]:
        folder = self._copy(GROWING) / "run"
        before = Run(folder).config
        detail = damaged(folder / "config.json", random)
        return detail, *self._refused(lambda: Run(folder).config == before)

    def _calibrated(self, random: Random) -> tuple[str, str, tuple[str, str]]:
        path = self._bench.folder / "case.json"
        shutil.copyfile(self._calibration, path)
        before = read_calibration(path).as_dict()
        detail = damaged(path, random)
        return detail, *self._refused(lambda: read_calibration(path).as_dict() == before)

    @staticmethod
    def _refused(is_same: Callable[[], bool]) -> tuple[str, tuple[str, str]]:
        try:
            return _UNCHANGED, ("", "") if is_same() else _WRONG
        except OtptError as error:
            return "refused", ("", "") if "\n" not in str(error) else ("several lines", str(error))

    def _resumed(self, scenario: Scenario, part: str, pattern: str, random: Random) -> tuple[str, str, tuple[str, str]]:
        """The command again, after the damage: the same rows. With a damaged cache, into a new run."""
        folder = self._copy(scenario)
        files = sorted(path for path in (folder / part).rglob(pattern) if path.is_file())
        detail = damaged(random.choice(files), random)
        if part == "cache":
            shutil.rmtree(folder / "run")
        where = self._bench.where("case")
        ended = self._bench.processes([partial(scenario.run, where)])
        if ended.codes != (0,):
            return detail, "", ("cannot be resumed", ended.said)
        for aside in [*folder.rglob("*.corrupt"), *folder.rglob("damaged.*")]:
            aside.unlink()
        return detail, "recomputed, same bytes", self._bench.compared(scenario, where)
