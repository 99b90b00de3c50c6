"""Results: how they are shown, compared, copied, tabulated and drawn."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from otpt.errors import OtptError
from otpt.explain import HeatMap
from otpt.groups import Answer, Groups
from otpt.methods import MULTI_LABEL
from otpt.prediction import Failure, Prediction, Predictions

NAMES = ("beagle", "pug", "tabby")
GROUPS = Groups.read({"dog": ["beagle", "pug"]}, NAMES)


def picture() -> Image.Image:
    return Image.new("RGB", (40, 30), (200, 120, 40))


def predicted(
    probabilities: tuple[float, ...] = (0.5, 0.3, 0.2), names: tuple[str, ...] = NAMES, **fields: Any
) -> Prediction:
    p = np.array(probabilities)
    index = int(p.argmax())
    return Prediction(names[index], float(p[index]), index, p, names, fields.pop("method", "zero-shot"), **fields)


def failed(position: int = 1) -> Failure:
    return Failure("no <image>.png", position, OtptError("There is no image at 'no <image>.png'; check the path."))


OBJECTS: dict[str, tuple[Any, str]] = {
    "prediction": (predicted(extras={"mean_cosine": math.nan}, grouping=GROUPS), "beagle"),
    "predictions": (Predictions([predicted(image="a.png"), failed()]), "Predictions(2 images, 1 failed)"),
    "no predictions": (Predictions(), "Predictions(0 images)"),
    "failure": (failed(), "no <image>.png"),
    "heat map": (HeatMap(np.array([[-1.0, 2.0]]), "pug", 0.3, picture()), "HeatMap(label='pug', confidence=0.30"),
    "groups": (GROUPS, "Groups('dog' (2 classes))"),
    "answer": (Answer("dog", 0.8, 2), "Answer(name='dog', confidence=0.8, classes=2)"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_results_are_shown_and_copied(name: str) -> None:
    result, shown = OBJECTS[name]
    assert shown in repr(result)
    assert len(repr(result)) < 300
    if isinstance(result, (Prediction, Predictions, Failure)):
        html = result._repr_html_()
        assert html.startswith("<table>")
        assert "<image>" not in html
    for other in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert type(other) is type(result)
        assert other == result
        assert repr(other) == repr(result)
        if not isinstance(result, Predictions):
            assert hash(other) == hash(result)
    assert all(result != other for key, (other, _) in OBJECTS.items() if key != name)
    assert result != "something else"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (predicted(), predicted((0.4, 0.35, 0.25))),
        (predicted(), predicted(threshold=0.9)),
        (predicted(), predicted(abstained=False)),
        (predicted(), predicted(grouping=GROUPS)),
        (failed(1), failed(2)),
        (failed(), Failure("no <image>.png", 1, OtptError("It is empty."))),
        (Predictions([predicted()]), Predictions([failed()])),
        (OBJECTS["heat map"][0], HeatMap(np.array([[-1.0, 3.0]]), "pug", 0.3, picture())),
        (OBJECTS["heat map"][0], HeatMap(np.array([[-1.0, 2.0]]), "pug", 0.3, Image.new("RGB", (40, 30)))),
        (GROUPS, Groups({"dog": (0,)})),
    ],
)
def test_results_that_differ(one: object, other: object) -> None:
    assert one != other


def test_the_name_and_the_source_of_an_image_are_not_compared() -> None:
    named = predicted(image="a.png", source=picture)
    assert named == predicted()
    assert hash(named) == hash(predicted())
    assert named.to_dict()["image"] == "a.png"
    assert "image" not in predicted().to_dict()
    assert "source" not in json.dumps(named.to_dict())
    again = pickle.loads(pickle.dumps(named))
    assert (again.image, again.source) == ("a.png", None)
    assert replace(named, image="b.png").source is picture
    unpicklable = predicted(source=lambda: "a.png")
    assert pickle.loads(pickle.dumps(Predictions([unpicklable]))) == [unpicklable]


def test_the_threshold_of_a_prediction_is_the_default() -> None:
    strict = predicted(threshold=0.75, grouping=GROUPS)
    assert strict.labels_above() == []
    assert strict.labels_above(0.3) == ["beagle", "pug"]
    assert strict.back_off() == strict.back_off(0.75) == Answer("dog", 0.8, 2)
    assert strict.back_off(0.5) == Answer("beagle", 0.5, 1)
    assert predicted().labels_above() == ["beagle"]
    for threshold in (50, -0.1, math.nan):
        with pytest.raises(OtptError, match="threshold"):
            predicted().labels_above(threshold)


def test_groups_in_words() -> None:
    many = Groups({f"group {i}": (i,) for i in range(8)})
    assert "… 3 more" in repr(many)
    assert "'group 0' (1 class)" in repr(many)


def test_many_predictions_are_a_list() -> None:
    results = Predictions([predicted(), failed(), predicted((0.1, 0.2, 0.7))])
    assert isinstance(results, list)
    assert results == list(results)
    assert results.labels == ["beagle", None, "tabby"]
    assert results.failures == [failed()]
    assert isinstance(results[:2], Predictions)
    assert results[:2] == results[0:2:1] == list(results)[:2]
    assert results[-1].label == "tabby"
    assert type(results.copy()) is Predictions
    assert results.copy() is not results
    assert Predictions(result for result in results) == results
    results.append(predicted())
    assert len(results) == 4


def test_many_predictions_in_words() -> None:
    results = Predictions([predicted(image=f"{i}.png", abstained=i == 0) for i in range(30)])
    lines = repr(results).splitlines()
    assert lines[0] == "Predictions(30 images)"
    assert lines[1].strip() == "0.png: beagle 0.50"
    assert lines[-1].strip() == "… and 25 more"
    html = results._repr_html_()
    assert html.count("<tr>") == 22  # a header, twenty images, the rest
    assert "… and 10 more" in html
    assert html.count("abstained") == 1
    assert "image 3: beagle 0.50" in repr(Predictions([predicted(), failed(), predicted()]))
    nasty = predicted((0.6, 0.4), ("<script>", "&"), image="<b>.png")._repr_html_()
    assert "<script>" not in nasty


def test_a_data_frame_has_a_row_per_image() -> None:
    frame = Predictions([predicted(image="a.png"), predicted((0.1, 0.2, 0.7))]).to_pandas()
    assert frame.columns.tolist() == ["image", "label", "confidence", "method"]
    assert frame.image.tolist() == ["a.png", "image 2"]
    assert frame.label.tolist() == ["beagle", "tabby"]
    assert frame.confidence.tolist() == [0.5, 0.7]
    assert Predictions().to_pandas().columns.tolist() == ["image", "label", "confidence", "method"]
    assert len(Predictions().to_pandas(probabilities=True)) == 0


def test_a_data_frame_has_the_columns_that_occur() -> None:
    results = Predictions(
        [
            predicted(set=("beagle", "pug"), abstained=True, rejected=False, grouping=GROUPS, flags=("kept",)),
            failed(),
            predicted(method=MULTI_LABEL, threshold=0.25),
            predicted((0.35, 0.3, 0.35), grouping=GROUPS, threshold=0.9),
        ]
    )
    frame = results.to_pandas()
    assert frame.columns.tolist() == [
        *("image", "label", "confidence", "method", "set", "abstained", "rejected", "labels_above"),
        *("back_off", "back_off_confidence", "p(dog)", "flags", "error"),
    ]
    assert frame.label[1] is None
    assert math.isnan(frame.confidence[1])
    assert frame.confidence.dtype == float
    assert frame.error.tolist() == [None, str(failed().error), None, None]
    assert frame["set"][0] == ("beagle", "pug")
    assert frame.abstained.tolist() == [True, None, None, None]
    assert frame.labels_above[2] == ("beagle", "pug")
    assert frame.back_off.tolist() == ["beagle", None, None, None]
    assert frame["p(dog)"].tolist() == pytest.approx([0.8, math.nan, math.nan, 0.65], nan_ok=True)
    assert frame["flags"][0] == ("kept",)


def test_a_data_frame_of_different_class_lists() -> None:
    results = Predictions(
        [
            predicted(),
            failed(),
            predicted((0.6, 0.3, 0.1), ("crane", "pug", "crane")),
            predicted((0.9, 0.1), ("p", "q")),
        ]
    )
    frame = results.to_pandas(probabilities=True)
    columns = ["p(beagle)", "p(pug)", "p(tabby)", "p(crane)", "p(crane #2)", "p(p)", "p(q)"]
    assert frame.columns.tolist() == ["image", "label", "confidence", "method", "error", *columns]
    nan = math.nan
    np.testing.assert_array_equal(
        frame[columns].to_numpy(),
        [
            [0.5, 0.3, 0.2, nan, nan, nan, nan],
            [nan] * 7,
            [nan, 0.3, nan, 0.6, 0.1, nan, nan],
            [nan, nan, nan, nan, nan, 0.9, 0.1],
        ],
    )
    only_failures = Predictions([failed()]).to_pandas(probabilities=True)
    assert only_failures.columns.tolist() == ["image", "label", "confidence", "method", "error"]
    assert isinstance(frame, pd.DataFrame)


LONG = ("a class whose name is much longer than the width of a panel, and then some", "price $5 & $6", "猫")


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in (figure, *figure.axes) for text in axes.texts]


@pytest.mark.parametrize("count", [1, 2, 5, 13])
def test_a_figure_of_predictions(count: int, tmp_path: Path) -> None:
    picture().save(tmp_path / "saved.png")
    gone = tmp_path / "gone.png"
    sources = [picture, lambda: tmp_path / "saved.png", lambda: np.zeros((8, 8, 3), np.uint8), lambda: gone, None]
    results = Predictions(
        [predicted(names=LONG, image=f"{i}.png", source=sources[i % len(sources)]) for i in range(count)]
    )
    if count > 1:
        results[1] = failed()
    figure = results.plot()
    assert isinstance(figure, Figure)
    images = [axes for axes in figure.axes if axes.images]
    shown = min(count, 12)
    assert len(images) == sum(i != 1 and i % 5 in (0, 1, 2) for i in range(shown))
    assert ("… and 1 more" in texts(figure)) == (count == 13)
    assert ("failed" in texts(figure)) == (count > 1)
    assert texts(figure).count("image not available") == sum(i % 5 in (3, 4) for i in range(shown))
    _check_places(figure)


def _check_places(figure: Figure) -> None:
    """Every text is inside the figure, and no two texts overlap."""
    boxes = [text.get_window_extent() for axes in (figure, *figure.axes) for text in axes.texts if text.get_text()]
    width, height = figure.canvas.get_width_height()
    for number, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y0 >= 0
        assert box.y1 <= height
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_a_figure_of_one_prediction() -> None:
    classes = tuple(f"class {i}" for i in range(30))
    probabilities = tuple(np.linspace(2, 0, 30) / 30)
    without = predicted(probabilities, classes).plot()
    assert "class 0 · 7 %" in texts(without)
    assert "class 9" in texts(without)
    assert "class 10" not in texts(without)
    assert not any(axes.images for axes in without.axes)
    figure = predicted(names=LONG, source=picture, abstained=True, image="folder/cat.png").plot()
    assert "cat.png · abstained" in texts(figure)
    assert any(axes.images for axes in figure.axes)
    _check_places(figure)
    shown: Any = figure
    assert shown._repr_png_().startswith(b"\x89PNG"), "in notebooks without %matplotlib inline"
    assert pickle.loads(pickle.dumps(figure))._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "value"), [({"columns": 0}, "0"), ({"limit": 1.5}, "1.5"), ({"limit": True}, "True")]
)
def test_bad_options_of_a_figure(options: dict[str, Any], value: str) -> None:
    with pytest.raises(OtptError, match=value):
        Predictions([predicted()]).plot(**options)
    with pytest.raises(OtptError, match="no predictions"):
        Predictions().plot()
