"""Settings of the gates, the mixtures and the calibrations."""

from __future__ import annotations

import pytest
from oracles.methods import posthoc
from oracles.methods.posthoc_bench import classifier, image, literal

from otpt.methods import compose

pytestmark = pytest.mark.slow


def test_settings_change_what_they_say() -> None:
    quadratic = compose("use").override({"se-power": 2})
    found = classifier().compare(image(0), [quadratic], image_id="0")["use"]
    rows = literal(0, "zero-shot")[2]
    assert found.extras["alpha"] == pytest.approx(posthoc.se_weight(rows, quadratic=True), abs=1e-12)
    assert dict(quadratic.tuning("shift").settings) == {"se_power": 2.0}, (
        "the step and the mixture have the same weight"
    )
    wide = compose("tpt+e-cots").override({"strong-ratio": 1.0})
    found = classifier().compare(image(0), [wide], image_id="0")["tpt+e-cots"]
    _, adapted, zero_shot = literal(0, "tpt")
    assert found.extras["temperature"] == pytest.approx(posthoc.matching(adapted[1:], zero_shot[1:]), rel=1e-9)
