"""Download, teach, distil, export: ``python -m training.photo WORK`` (may be stopped and started again)."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from . import export, head, nouns, sources, student, teacher


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.photo", description=__doc__)
    parser.add_argument("work", type=Path, help="folder for downloads and checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work: Path = options.work
    sources.download(work)
    texts = nouns.read_texts(sources.wordnet(work))
    embeddings = teacher.teach(texts.nouns, texts.glosses, sources.sentence_encoder(work), work / "teacher.pt")
    targets = student.make_targets(*embeddings, classes=len(texts.imagenet))
    templates = [prefix + suffix for prefix, suffix in (student.PLAIN, *student.TEMPLATES)]
    learned = [*texts.nouns, *texts.glosses]
    vocabulary = student.Vocabulary([*learned, *(f"{text}." for text in learned), *templates])
    print(f"{len(texts.nouns)} nouns, {len(texts.glosses)} glosses, {len(vocabulary.rows)} tokens", flush=True)
    tower = student.distil(texts, targets, vocabulary, student.Recipe(), work / "run.pt")
    geometry = export.Geometry()
    nouns_file = sources.wordnet(work) / "data.noun"
    classes = head.fit_directions(tower, vocabulary, texts.imagenet, nouns_file, head.HeadRecipe())
    weights = torch.load(sources.imagenet_classifier(work), map_location="cpu", weights_only=True)
    state = export.text_state(tower, geometry) | export.image_state(weights, classes, geometry)
    export.export(state, vocabulary)


if __name__ == "__main__":
    main()
