"""Videos and folders of frames: which frames are views, which methods take them, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from oracles.data.images import image
from oracles.models.tiny import tiny_backbone
from PIL import Image

import otpt
from otpt import Classifier, Failure, Frames, OtptError, bulk, video
from otpt.cli import main
from otpt.features import FeatureCache
from otpt.features.pipeline import FeaturePipeline, ImageTask
from otpt.video import FORMATS, frame_fractions
from otpt.views import ViewRecipe

av = pytest.importorskip("av")
SIZE = (64, 48)
CLASSES = ("cat", "dog", "sea")


def grey(number: int) -> Image.Image:
    return Image.new("RGB", SIZE, (6 * number, 6 * number, 6 * number))


def write_video(path: Path, images: list[Image.Image], rotation: int = 0) -> Path:
    with av.open(str(path), "w") as container:
        codec = "mpeg1video" if path.suffix in (".mpg", ".mpeg") else "libvpx" if path.suffix == ".webm" else "mpeg4"
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = *images[0].size, "yuv420p"
        stream.bit_rate = 4_000_000
        for one in images:
            for packet in stream.encode(av.VideoFrame.from_image(one)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of 40 frames, each lighter than the one before."""
    return write_video(tmp_path_factory.mktemp("videos") / "clip.mp4", [grey(i) for i in range(40)])


def classifier(method: str = "mean-probability", views: int = 8, **fields: Any) -> Classifier:
    return Classifier(tiny_backbone(), method, **{"classes": CLASSES, "views": views, **fields})


@pytest.mark.parametrize("power", range(1, 7))
def test_frames_are_spread_evenly(power: int) -> None:
    count = 2**power - 1
    assert sorted(map(Fraction, frame_fractions(count))) == [Fraction(i, 2**power) for i in range(1, 2**power)]
    assert frame_fractions(count + 9)[:count] == frame_fractions(count)


@pytest.mark.parametrize("suffix", FORMATS)
def test_frames_of_each_kind_of_file(suffix: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / f"clip{suffix}", [grey(i) for i in range(40)])
    wanted = [0.75, 0.0, 0.25, 0.5, 1.0]
    shades = dict(Frames(path).at(wanted))
    assert [shades[i].size for i in range(len(wanted))] == [SIZE] * len(wanted)
    for i, fraction in enumerate(wanted):
        assert np.asarray(shades[i]).mean() == pytest.approx(6 * 39 * fraction, abs=14)


def test_a_prediction_averages_over_the_frames(clip: Path) -> None:
    clf = classifier("mean-probability", views=7)
    single = clf.replace(method="zero-shot")
    stills = [frame for _, frame in sorted(Frames(clip).at(frame_fractions(7)))]
    rows = [single.predict(still).probabilities for still in stills]
    prediction = clf.predict(str(clip))
    assert prediction.probabilities == pytest.approx(np.mean(rows, axis=0), abs=1e-5)
    assert prediction.image == str(clip)
    assert single.predict(clip).probabilities == pytest.approx(rows[0], abs=1e-6)
    assert np.array_equal(clf.predict(clip).probabilities, prediction.probabilities)
    assert np.array_equal(clf.replace(seed=5, augmix=True).predict(clip).probabilities, prediction.probabilities)


def test_all_ways_to_give_frames_are_equal(clip: Path, tmp_path: Path) -> None:
    images = [image(i) for i in range(5)]
    for i, one in enumerate(images):
        one.save(tmp_path / f"{i:03d}.png")
    clf = classifier("o-tpt")
    expected = clf.predict(Frames(images)).probabilities
    assert np.array_equal(clf.predict(Frames(tmp_path)).probabilities, expected)
    both = clf.predict([Frames(tmp_path), str(clip), images[0]])
    assert [one.image for one in both] == [str(tmp_path), str(clip), "image 3"]
    assert both[0].probabilities == pytest.approx(expected, abs=1e-6)
    assert Frames(str(tmp_path)) == Frames(tmp_path) == pickle.loads(pickle.dumps(Frames(tmp_path)))
    assert Frames(tmp_path) != Frames(clip)
    assert isinstance(both.plot(), Figure)
    assert classifier().explain(clip).image.size == SIZE


def test_a_budget_sees_the_first_frames(clip: Path) -> None:
    clf = Classifier(tiny_backbone(), "mean-probability", classes=CLASSES, budget=32)
    used = int(clf.predict(clip).extras["views"])
    assert used in (8, 32)
    fixed = clf.replace(views=used).predict(clip)
    assert clf.predict(clip).probabilities == pytest.approx(fixed.probabilities, abs=1e-6)


def test_frames_are_not_cached(clip: Path, tmp_path: Path) -> None:
    """A cache has features by file, and knows crops only."""
    cache = FeatureCache(tmp_path / "cache")
    for views in (4, 7):
        task = ImageTask("clip", lambda: clip, [ViewRecipe(n_views=views)], 0)
        ((_, encoded),) = FeaturePipeline(tiny_backbone(), cache=cache, threads=0)([task])
        assert not isinstance(encoded, OtptError)
        assert [len(features) for features in encoded.features.values()] == [views]
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_the_command_line_and_bulk_files(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--backbone", "pocket", "--device", "cpu", "--views", "4", "--json", "--classes", *CLASSES]
    assert main(["predict", str(clip), *options]) == 0
    row = json.loads(capsys.readouterr().out)
    clf = otpt.load("pocket", device="cpu", classes=CLASSES, views=4)
    assert (row["image"], row["confidence"]) == (str(clip), pytest.approx(clf.predict(clip).confidence, abs=1e-6))
    assert bulk.predict(clf, [clip, Frames([image(0)])], tmp_path / "out.csv").images == 2


def test_methods_that_make_their_own_views_say_so(clip: Path) -> None:
    with pytest.raises(OtptError, match=r"clip\.mp4"):
        Classifier(tiny_backbone(), classes=CLASSES, multi_label=True).predict(clip)


def cut_off(path: Path, clip: Path) -> None:
    path.write_bytes(clip.read_bytes()[: clip.stat().st_size // 2])


def without_video(path: Path, clip: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 8000
        for packet in (*stream.encode(frame), *stream.encode()):
            container.mux(packet)


BROKEN: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda path, clip: None,
    "empty": lambda path, clip: path.touch(),
    "folder": lambda path, clip: path.mkdir(),
    "noise": lambda path, clip: path.write_bytes(np.random.default_rng(0).bytes(5000)),
    "cut off": cut_off,
    "an image": lambda path, clip: grey(3).save(path, "png"),
    "a playlist": lambda path, clip: path.write_text(f"#EXTM3U\n#EXTINF:1,\n{clip}\n#EXT-X-ENDLIST\n"),
    "sound": without_video,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_videos(kind: str, clip: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.mp4"
    BROKEN[kind](path, clip)
    with pytest.raises(OtptError, match=r"broken\.mp4"):
        classifier().predict(path)
    first, second = classifier().predict([path, clip], errors="return")
    assert isinstance(first, Failure)
    assert not isinstance(second, Failure)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_are_frames_or_refused(seed: int, clip: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    data = bytearray(clip.read_bytes())
    for position in random.integers(0, len(data), 12):
        data[position] = random.integers(256)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(data)
    (result,) = classifier(views=4).predict([path], errors="return")
    assert isinstance(result, Failure) or np.isfinite(result.probabilities).all()


@pytest.mark.parametrize(("limit", "value"), [("MAX_FRAMES", 39), ("MAX_PIXELS", 64 * 48 - 1)])
def test_a_huge_video_is_refused(limit: str, value: int, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(Frames(clip).at([0.5]))) == 1
    monkeypatch.setattr(video, limit, value)
    with pytest.raises(OtptError, match=r"clip\.mp4"):
        list(Frames(clip).at([0.5]))


@pytest.mark.parametrize("source", ["clip.txt", [], None, 3, "https://example.org/clip.mp4", b"bytes"])
def test_what_is_no_sequence_of_frames(source: Any) -> None:
    with pytest.raises(OtptError):
        Frames(source)


def test_an_empty_folder_of_frames(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="no images"):
        classifier().predict(Frames(tmp_path))
