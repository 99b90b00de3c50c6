"""Settings of the gates, the mixtures and the calibrations."""

from __future__ import annotations

import pytest
from oracles.methods import posthoc
from oracles.methods.posthoc_bench import classifier, image, literal

from otpt import OtptError
from otpt.methods import compose

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("method", "setting", "value", "words"),
    [
        ("tpt+cots", "strong-ratio", 0, "above 0"),
        ("tpt+e-cots", "strong-ratio", 1.5, "at most 1"),
        ("zero-shot+se", "se-power", 0, "above 0"),
        ("tpt+cas", "cas-threshold", 1.1, "at most 1"),
        ("tpt+agreement", "gate-ratio", -1, "above 0"),
        ("tpt+dac", "dac-neighbours", 2.5, "a whole number, 1 or more"),
    ],
)
def test_settings_out_of_range_are_refused(method: str, setting: str, value: float, words: str) -> None:
    with pytest.raises(OtptError, match=rf"{setting} is {value:g}; expected .*{words}"):
        compose(method).override({setting: value})


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
