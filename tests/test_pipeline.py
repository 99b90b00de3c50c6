"""``otpt.pipeline`` next to Hugging Face's own: one line of existing code changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from open_clip import SimpleTokenizer
from oracles.models.medical import write_plip
from PIL import Image

import otpt

pytestmark = pytest.mark.slow

# theirs resizes tensors, ours PIL images, so that pixels are rounded differently: 3e-5 in the scores
LABELS = ["cat", "dog", "red panda"]
TASK = "zero-shot-image-classification"


def write_model(folder: Path) -> str:
    """A small CLIP with tokenizer and image processor, as on the hub."""
    write_plip(folder)
    tokenizer = SimpleTokenizer()
    marks = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {marks.get(token, token): number for token, number in tokenizer.encoder.items()}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = [" ".join(pair) for pair in tokenizer.bpe_ranks]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    transformers.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt")).save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}
    transformers.CLIPImageProcessor(**sizes).save_pretrained(folder)
    return str(folder)


def images() -> list[Image.Image]:
    draws = np.random.default_rng(0)
    return [Image.fromarray(draws.integers(0, 256, (40, 48, 3), dtype=np.uint8)) for _ in range(2)]


def test_lists_and_scores_are_those_of_hugging_face(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    theirs = transformers.pipeline(TASK, model=folder, device=-1)
    ours = otpt.pipeline(TASK, model=folder, device=-1, method="zero-shot")
    for given in (images()[0], images()):
        expected, found = theirs(given, candidate_labels=LABELS), ours(given, candidate_labels=LABELS)
        assert type(found) is type(expected)
        flat = [(expected, found)] if isinstance(given, Image.Image) else list(zip(expected, found, strict=True))
        for one, other in flat:
            assert [each["label"] for each in other] == [each["label"] for each in one]
            assert [each["score"] for each in other] == pytest.approx([each["score"] for each in one], abs=1e-3)
            assert [set(each) for each in other] == [{"score", "label"}] * 3
    worded = ours(images()[0], candidate_labels="cat, dog", hypothesis_template="a {}")
    expected = theirs(images()[0], candidate_labels=["cat", "dog"], hypothesis_template="a {}")
    assert worded[0]["score"] == pytest.approx(expected[0]["score"], abs=1e-3)
    lazily = ours((each for each in images()), candidate_labels=LABELS)
    assert [each[0]["label"] for each in lazily] == [each[0]["label"] for each in ours(images(), LABELS)]
    assert ours(images=images()[0], candidate_labels=LABELS) == ours(images()[0], LABELS)


def test_bad_calls() -> None:
    with pytest.raises(otpt.OtptError, match="image-to-text"):
        otpt.pipeline("image-to-text", model="pocket")
    with pytest.raises(otpt.OtptError, match="model"):
        otpt.pipeline(TASK)
    classify = otpt.pipeline(TASK, model="pocket", device="cpu")
    with pytest.raises(otpt.OtptError, match="image is None"):
        classify(candidate_labels=LABELS)
    with pytest.raises(otpt.OtptError, match="No classes"):
        classify(images()[0])
