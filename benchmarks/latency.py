"""Latency of one call with 1, 16 and 160 images: ``python -m benchmarks.latency [--images 1 16]``; five minutes.

ViT-B/32 with random weights, 100 classes, the same JPEG files, the same number of threads. Compared with a plain loop
over open_clip (read, preprocess, encode in one batch, logits) and with Hugging Face's zero-shot image classification
pipeline. Methods that use views are compared with an open_clip loop that encodes as many random crops of each image:
64 of one image, 16 each of 16, 4 each of 160. The calls take turns and the fastest round of each counts. The pipeline
works image by image, with the texts of all classes each time; it is measured on at most 16 images, and its time is
scaled. Ratios are otpt's seconds divided by open_clip's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import otpt
from benchmarks.engine import class_names, photograph, plain_model, random_backbone
from otpt.backbones import Backbone

ARCHITECTURE, CLASSES = "ViT-B-32", 100
METHODS = ("zero-shot", "confident-half", "o-tpt")
COUNTS = (1, 16, 160)
BATCH = 64  # images or views that the plain loop encodes at a time
PIPELINE_IMAGES = 16

Call = Callable[[Sequence[Path]], object]


def open_clip_loop(model: Any, views: int) -> Call:
    """Zero-shot prediction as open_clip's README does it; with views, of that many random crops of each image."""
    import torchvision.transforms as transforms
    from open_clip import get_tokenizer, image_transform

    prepare: Any = image_transform(model.visual.image_size, is_train=False)
    crop = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()])
    with torch.inference_mode():
        tokens = get_tokenizer(ARCHITECTURE)([f"a photo of a {name}." for name in class_names(CLASSES)])
        texts = model.encode_text(tokens, normalize=True)

    @torch.inference_mode()
    def call(paths: Sequence[Path]) -> Tensor:
        found = []
        step = BATCH if views == 1 else 1
        for start in range(0, len(paths), step):
            images = [Image.open(path).convert("RGB") for path in paths[start : start + step]]
            pixels = torch.stack([prepare(each if i == 0 else crop(each)) for each in images for i in range(views)])
            features = model.encode_image(pixels, normalize=True)
            found.append((100 * features @ texts.T).softmax(dim=-1))
        return torch.cat(found)

    return call


def hugging_face_pipeline() -> Call:
    """The pipeline of transformers; its tokenizer knows whole words only, which costs no more and needs no download."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        CLIPConfig,
        CLIPImageProcessor,
        CLIPModel,
        PreTrainedTokenizerFast,
        ZeroShotImageClassificationPipeline,
    )

    words = {word for name in class_names(CLASSES) for word in name.split()} | {"a", "photo", "of"}
    vocabulary = {word: i for i, word in enumerate(["<unk>", *sorted(words)])} | {"<start>": 49406, "<end>": 49407}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 49406), ("<end>", 49407)]
    )
    names = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<end>")
    torch.manual_seed(0)
    pipeline = ZeroShotImageClassificationPipeline(
        model=CLIPModel(CLIPConfig()).eval(), tokenizer=names, image_processor=CLIPImageProcessor(), device="cpu"
    )
    labels = class_names(CLASSES)
    return lambda paths: pipeline([str(path) for path in paths], candidate_labels=labels, batch_size=1)


def otpt_call(backbone: Backbone, method: str, views: int) -> Call:
    """:meth:`otpt.Classifier.predict` of one image, or of a list."""
    classifier = otpt.Classifier(backbone, method, views=views).set_classes(class_names(CLASSES), allow_duplicates=True)
    return lambda paths: classifier.predict(paths[0] if len(paths) == 1 else list(paths))


def measure(calls: dict[str, Call], paths: Sequence[Path], rounds: int) -> dict[str, float]:
    """Seconds of a call, the fastest of all rounds; the calls take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call(paths)
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def run(counts: Sequence[int] = COUNTS, methods: Sequence[str] = METHODS, rounds: int = 5) -> None:
    """Print a row per number of images and method."""
    print(f"{ARCHITECTURE}, {CLASSES} classes, {torch.get_num_threads()} threads; milliseconds per call")
    print(
        f"{'method':16}{'images':>7}{'views':>7}{'open_clip':>11}{'pipeline':>10}{'otpt':>9}{'ratio':>8}{'images/s':>10}"
    )
    backbone, plain_clip, pipeline = random_backbone(ARCHITECTURE), plain_model(ARCHITECTURE), hugging_face_pipeline()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.jpg" for i in range(max(counts))]
        for i, path in enumerate(paths):
            photograph(i).save(path)
        for count in counts:
            for views in (1, min(64, max(4, 256 // count))):
                named = [method for method in methods if (method == "zero-shot") == (views == 1)]
                if not named:
                    continue
                calls = {method: otpt_call(backbone, method, views) for method in named}
                calls["open_clip"] = open_clip_loop(plain_clip, views)
                work = count * views
                best = measure(calls, paths[:count], rounds if work <= 64 else min(rounds, 2) if work <= 256 else 1)
                theirs = "–"
                if views == 1:
                    few = min(count, PIPELINE_IMAGES)
                    (seconds,) = measure({"": pipeline}, paths[:few], 1 if few > 1 else rounds).values()
                    theirs = f"{1000 * seconds * count / few:.0f}"
                plain = best.pop("open_clip")
                for method, own in best.items():
                    print(
                        f"{method:16}{count:7}{views:7}{1000 * plain:11.0f}{theirs:>10}{1000 * own:9.0f}"
                        f"{own / plain:8.2f}{count / own:10.2f}",
                        flush=True,
                    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", nargs="+", type=int, default=COUNTS, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="NAME", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="(default: %(default)s)")
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(options.images, options.methods, options.rounds)


if __name__ == "__main__":
    main()
