"""Split files of CoOp, the official lists, and ISIC's table of classes, in the folders of registered data sets."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from otpt.data import find_entry, load_dataset
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import as_json, damaged, mutated, odd, text

_NAMES = ("dtd", "pets", "sun397", "eurosat", "food101", "aircraft", "isic2018")


def _content(rng: random.Random, classes: tuple[str, ...]) -> Any:
    rows: list[Any] = []
    for _ in range(rng.randrange(1, 12)):
        label = rng.randrange(len(classes))
        rows.append([f"{classes[label]}/a.jpg", label, classes[label]])
    content: Any = {"train": [], "val": [], "test": rows}
    if rng.random() < 0.6:
        content = mutated(rng, content)
    if isinstance(content, dict) and isinstance(content.get("test"), list) and rng.random() < 0.4:
        content["test"].append([rng.choice(("../../outside/secret.jpg", "/etc/passwd", text(rng))), 0, classes[0]])
    return content


def _lines(rng: random.Random, classes: tuple[str, ...]) -> bytes:
    lines = []
    for _ in range(rng.randrange(1, 12)):
        fields = [rng.choice((text(rng), "a", rng.choice(classes))) for _ in range(rng.randrange(1, 5))]
        lines.append(rng.choice((" ".join, ",".join))(fields))
        if rng.random() < 0.4:
            lines.append(f"a_1 {rng.choice(('1', '0', '²', '9' * 5000, '-1', '37'))} 1 1")
        if rng.random() < 0.3:
            lines.append(f"/{rng.choice(classes)}/../../../outside/secret.jpg")
    data = "\n".join(lines).encode("utf-8", "replace")
    return damaged(rng, data)[0] if rng.random() < 0.2 else data


def _split(rng: random.Random, given: Path) -> Input:
    name = rng.choice(_NAMES)
    entry = find_entry(name)
    assert entry is not None
    classes = entry.class_list().folders
    layout = rng.choice(entry.layouts)
    folder = given / layout.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jpg").write_bytes(b"x")
    split = rng.choice(("test", "test", "test", "train", "val", text(rng)))
    if entry.split_file:
        content = _content(rng, entry.class_list().names)
        if rng.random() < 0.02:
            content = odd(rng)
        (given / entry.split_file).write_bytes(as_json(rng, content))
    for listed in ("annotations/test.txt", "Testing_01.txt", "images_variant_test.txt", "variants.txt"):
        if rng.random() < 0.5:
            (given / listed).parent.mkdir(exist_ok=True)
            (given / listed).write_bytes(_lines(rng, classes))
    if name == "isic2018":
        truth = "ISIC2018_Task3_Test_GroundTruth.csv"
        head = ",".join(("image", *classes)) + "\n" if rng.random() < 0.7 else ""
        rows = "".join(
            f"{text(rng)},{','.join(rng.choice(('0', '1', '1.0', 'nan', '')) for _ in classes)}\n" for _ in range(3)
        )
        (folder.parent / truth).write_bytes((head + rows).encode("utf-8", "replace"))
    detail = f"{name} in the layout of {layout.style}, split {ascii(split)[:20]}"

    def ask() -> object:
        found = load_dataset(name, root=given, split=split)
        return json.dumps(
            [found.ids[:3], found.labels[:3], [found.is_file_missing(i) for i in range(min(len(found), 5))]]
        )

    return Input(detail, ask)


def _prepare() -> None:
    import open_clip.zero_shot_metadata  # noqa: F401  the names of ImageNet


KINDS = [Kind("split files", _split, _prepare)]
