"""Outcomes counted: the results of a part as a JSON file, which several runs of the part may add to."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torture.records import Outcome

RESULTS = Path(__file__).parent / "results"
_KEPT = 50  # failing cases that are written down one by one
_GAP = 10  # seeds that a part may leave out, where something cannot be tried, within one range


@dataclass
class Tally:
    """Counts of a part.

    Attributes:
        kinds: kind → phrase → number of cases that ended so.
        failing: kind → number of cases in which a promise was broken.
        failures: the first of these, in full.
        seconds: of all cases in sum.
        seeds: ranges [first, last] of the cases' seeds.
    """

    part: str
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    failing: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    seeds: list[list[int]] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """All of them."""
        return sum(counts.total() for counts in self.kinds.values())

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        kind = outcome.case.kind
        self.kinds.setdefault(kind, Counter())[outcome.result] += 1
        self.seconds += outcome.seconds
        seed = outcome.case.seed
        if self.seeds and 0 <= seed - self.seeds[-1][1] <= _GAP:
            self.seeds[-1][1] = seed
        else:
            self.seeds.append([seed, seed])
        if not outcome.ok:
            self.failing[kind] += 1
            if len(self.failures) < _KEPT:
                self.failures.append(asdict(outcome))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in the file."""
        kinds = {
            kind: {"cases": counts.total(), "failing": self.failing[kind], "results": dict(sorted(counts.items()))}
            for kind, counts in sorted(self.kinds.items())
        }
        return {
            "part": self.part,
            "cases": self.cases,
            "failing": self.failing.total(),
            "seconds": round(self.seconds, 1),
            "seeds": self.seeds,
            "kinds": kinds,
            "failures": self.failures,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        """The counts in a file."""
        kinds = {kind: Counter(each["results"]) for kind, each in values["kinds"].items()}
        failing = Counter({kind: each["failing"] for kind, each in values["kinds"].items()})
        seeds = [list(each) for each in values["seeds"]]
        return cls(values["part"], kinds, failing, list(values["failures"]), values["seconds"], seeds)

    def write(self, path: Path) -> None:
        """Put the counts into a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> Tally:
    """The counts of a part that was run before."""
    return Tally.from_dict(json.loads(path.read_text(encoding="utf-8")))
