"""Bulk prediction: ``python -m benchmarks.bulk rows|speed [--images N] [--backbone NAME] [--threads N]``.

* ``rows``: a million synthetic rows through the writer, then the start of a resumed job: seconds and memory.
* ``speed``: images per second of zero-shot next to the faster of two plain loops with open_clip, one that decodes
  between batches and one with a process of a ``DataLoader`` per thread: the same files, batch size and cores, in turns;
  then the default and 64 views relative to zero-shot.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import open_clip
import psutil
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import otpt
from otpt.backbones import load_backbone
from otpt.bulk import RowStore

CLASSES = [f"thing number {i}" for i in range(40)]
BATCH = 32


def megabytes() -> float:
    """Memory of this process."""
    return float(psutil.Process().memory_info().rss) / 2**20


def rows(count: int, folder: Path) -> None:
    """Print seconds and memory of writing and of resuming, for each kind of file."""
    names = [f"photos/{i % 997:03}/image-{i:09}.jpg" for i in range(1000)]

    def images() -> Iterator[str]:
        return (f"{names[i % 1000]}-{i}" for i in range(count))

    for name in ("all.csv", "all.jsonl", "all.parquet", "parts"):
        before, begun, marks = megabytes(), time.perf_counter(), []
        file = RowStore(folder / name, {"job": 1}, top=1)
        file.resume(iter(()))
        for i, image in enumerate(images()):
            row = {"image": image, "method": "zero-shot", "label": "cat", "confidence": i / count, "flags": []}
            file.write([{**row, "top": [{"label": "cat", "probability": i / count}], "extras": {"mean_cosine": 0.5}}])
            if i % (count // 4) == count // 8:
                marks.append(megabytes() - before)
        file.flush(last=True)
        file.close()
        written, begun = time.perf_counter() - begun, time.perf_counter()
        resumed = RowStore(folder / name, {"job": 1}, top=1)
        found = resumed.resume(images())
        seconds = time.perf_counter() - begun
        resumed.close()
        assert found == count
        growth = ", ".join(f"{each:.0f}" for each in marks)
        print(f"{name}: {count} rows in {written:.1f} s, resumed in {seconds:.1f} s; MB at eighths: {growth}")


class Files(Dataset[torch.Tensor]):
    """Files as open_clip's preprocessing gives them."""

    def __init__(self, files: list[Path], preprocess: Callable[[Image.Image], torch.Tensor]) -> None:
        self._files, self._preprocess = files, preprocess

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._preprocess(Image.open(self._files[index]).convert("RGB"))


def speed(backbone: str, count: int, threads: int, folder: Path, rounds: int) -> None:
    """Print images per second."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # the same cores for all
    torch.set_num_threads(threads)
    files = []
    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        files.append(folder / f"{i}.jpg")
        Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(files[-1], quality=90)
    torch.manual_seed(0)
    model, _, preprocess = open_clip.create_model_and_transforms(backbone)
    model.eval()
    tokenizer = open_clip.get_tokenizer(backbone)
    with torch.inference_mode():
        texts = model.encode_text(tokenizer([f"a photo of a {name}." for name in CLASSES]), normalize=True)

    def plain(workers: int) -> Callable[[], int]:
        loader = DataLoader(Files(files, preprocess), BATCH, num_workers=workers, persistent_workers=workers > 0)

        def run() -> int:
            labels = []
            with torch.inference_mode():
                for batch in loader:
                    features = model.encode_image(batch, normalize=True)
                    labels += (100 * features @ texts.T).softmax(dim=1).max(dim=1).indices.tolist()
            return len(labels)

        return run

    def ours(method: str, few: int | None = None, **fields: Any) -> Callable[[], int]:
        clf = otpt.Classifier(load_backbone(model, tokenizer=tokenizer, preprocess=preprocess), method, **fields)
        clf.set_classes(CLASSES)
        return lambda: sum(1 for _ in clf.stream(files[:few], workers=threads))

    few = max(count // 16, 2)
    runs = {
        "plain loop": plain(0),
        "plain loop with loaders": plain(threads),
        "zero-shot": ours("zero-shot"),
        "default": ours("confident-half", few),
        "64 views": ours("confident-half", few, views=64),
    }
    for run in runs.values():
        run()  # starts processes and prepares what is prepared once
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begun = time.perf_counter()
            images = run()
            found[name].append(images / (time.perf_counter() - begun))
    base = max(median(rates) for name, rates in found.items() if name.startswith("plain"))
    for name, rates in found.items():
        print(f"{name}: {median(rates):.2f} images per second, {median(rates) / base:.2f} of the faster plain loop")
    zero = median(found["zero-shot"])
    print("seconds per image, zero-shot = 1:", {name: round(zero / median(each), 1) for name, each in found.items()})


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rows", "speed"))
    parser.add_argument("--images", type=int, help="a million rows, 128 images")
    parser.add_argument("--backbone", default="ViT-B-32")
    parser.add_argument("--threads", type=int, default=1, help="and cores")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.what == "rows":
            rows(options.images or 1_000_000, Path(scratch))
        else:
            speed(options.backbone, options.images or 128, options.threads, Path(scratch), options.rounds)


if __name__ == "__main__":
    main()
