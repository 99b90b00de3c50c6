"""What keys the views of an image in a run: stored, and either choice can be repeated but not mixed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from oracles.runs.evaluation_bench import backbone, dataset, image, rows, settings, write_images

from otpt.errors import OtptError
from otpt.evaluation import evaluate
from otpt.features import FeatureCache
from otpt.runs import Run

pytestmark = pytest.mark.slow


def encoded(index: int, form: str) -> bytes:
    buffer = io.BytesIO()
    image(index).save(buffer, form)
    return buffer.getvalue()


@pytest.mark.equality
def test_forms_of_one_image_agree_by_pixels_and_not_by_file(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    for key in ("pixels", "file"):
        for form in ("BMP", "TIFF", "opened"):
            images = [image(i) if form == "opened" else encoded(i, form) for i in range(3)]
            data = dataset(images=images)
            evaluate(data, backbone(), settings(view_key=key), out=tmp_path / key / form, cache=cache)
    by_pixels = [rows(tmp_path / "pixels" / form) for form in ("BMP", "TIFF", "opened")]
    assert by_pixels[0] == by_pixels[1] == by_pixels[2]
    by_file = [rows(tmp_path / "file" / form) for form in ("BMP", "TIFF", "opened")]
    assert by_file[0] != by_file[1]
    assert by_file[2] == by_pixels[2]  # an image in memory has no file


def test_the_key_is_stored_and_cannot_change_within_a_run(tmp_path: Path) -> None:
    data = dataset(images=write_images(tmp_path / "images", 2))
    out = tmp_path / "run"
    evaluate(data, backbone(), settings(methods=["zero-shot"], view_key="file"), out=out)
    assert "view_key" not in Run(out).config["numbers"]  # as in runs from before there was a choice
    with pytest.raises(OtptError, match=r"numbers.view_key is None there and 'pixels' now"):
        evaluate(data, backbone(), settings(methods=["zero-shot"]), out=out)
    evaluate(data, backbone(), settings(methods=["zero-shot"]), out=tmp_path / "new")
    assert Run(tmp_path / "new").config["numbers"]["view_key"] == "pixels"
    with pytest.raises(OtptError, match=r"numbers.view_key is 'pixels' there and None now"):
        evaluate(data, backbone(), settings(methods=["zero-shot"], view_key="file"), out=tmp_path / "new")
    with pytest.raises(OtptError, match="Unknown key of the views 'names'"):
        settings(view_key="names")
