"""Every method on two devices that are not the CPU: the same answers, and few questions to the device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.devices.device_bench import BAPLE, CLOSE, FEATURES, FROZEN, IMAGE_METHODS, PIXELS, STREAMS, Bench
from oracles.devices.elsewhere import DEVICES
from oracles.runs.evaluation_bench import NAMES

from otpt.methods.output import Output

pytestmark = pytest.mark.slow

GROUPS = {"features": FEATURES, "pixels": PIXELS, "baple": BAPLE, "frozen": FROZEN, "streams": STREAMS}
ONE, TWO = DEVICES


def same(one: Sequence[Sequence[Output]], other: Sequence[Sequence[Output]], *, close: float) -> None:
    for mine, theirs in zip(one, other, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=0, atol=close)
            assert (a.flags, set(a.extras)) == (b.flags, set(b.extras))
            for key, value in a.extras.items():
                assert value == pytest.approx(b.extras[key], abs=1e-3, nan_ok=True), key


@pytest.mark.parametrize("kind", GROUPS)
def test_predictions(kind: str, bench: Bench) -> None:
    """All methods of a kind at once: what one of them would ask beyond two synchronisations is seen here."""
    methods, found, counts = GROUPS[kind], {}, {}
    models = {device: bench.model(methods, device) for device in ("cpu", *DEVICES)}
    for device, model in models.items():
        found[device], counts[device] = bench.predicted(methods, model, bench.predictor(methods, model))
    same(found["cpu"], found[ONE], close=CLOSE)
    same(found[ONE], found[TWO], close=0)
    assert [counts[device].devices for device in models] == [set(), {ONE}, {TWO}]
    for device in DEVICES if kind != "streams" else ():
        assert counts[device].synchronisations <= 2, counts[device].waits


@pytest.mark.parametrize("kind", GROUPS)
def test_evaluations(kind: str, bench: Bench, tmp_path: Path) -> None:
    methods, found = GROUPS[kind], {}
    for device in ("cpu", *DEVICES):
        model = bench.model(methods, device)
        found[device], counts = bench.evaluated(methods, model, tmp_path / device.replace(":", "-"))
        assert counts.devices == ({device} if device != "cpu" else set())
        batches = len(NAMES) if kind == "baple" else 1  # a pass for each of its target classes
        assert counts.synchronisations <= 2 * batches or kind == "streams", counts.waits
    assert {row["method"] for row in found[ONE]} == set(methods)
    assert _without_nan(found[ONE]) == _without_nan(found[TWO])
    for mine, theirs in zip(found["cpu"], found[ONE], strict=True):
        assert (mine["id"], mine["method"], mine["prediction"]) == (
            theirs["id"],
            theirs["method"],
            theirs["prediction"],
        )
        assert mine["confidence"] == pytest.approx(theirs["confidence"], abs=CLOSE)


def test_no_method_is_left_out() -> None:
    assert {*IMAGE_METHODS, *FROZEN, *STREAMS} == {name for methods in GROUPS.values() for name in methods}


def _without_nan(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that can be compared: NaN equals nothing."""
    return [{key: None if value != value else value for key, value in row.items()} for row in rows]
