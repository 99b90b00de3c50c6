"""Make the figure of photographs in README.md, light and dark: ``python docs/photographs.py``; needs scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from PIL import Image
from sklearn.datasets import load_sample_image

from otpt import Prediction, load
from otpt.data import photograph
from otpt.data.photographs import PHOTOGRAPH_CLASSES

GALLERY = Path(__file__).parent / "gallery"
CLASSES = PHOTOGRAPH_CLASSES | {
    "temple": (
        "temple", "castle", "church", "skyscraper", "bridge", "barn", "lighthouse", "stadium", "house", "tent",
    ),
    "flower": (
        "flower", "tree", "leaf", "mushroom", "butterfly", "bee", "fruit", "vegetable", "bird", "grass",
    ),
}  # fmt: skip
SAMPLES = {"temple": "china.jpg", "flower": "flower.jpg"}  # of scikit-learn, CC BY 2.0
SHOWN = 4


def read(name: str) -> Image.Image:
    """Return a photograph of the package or of scikit-learn."""
    if name in SAMPLES:
        return Image.fromarray(load_sample_image(SAMPLES[name]))
    with Image.open(photograph(name)) as image:
        return image.convert("RGB")


def draw(images: list[Image.Image], answers: list[Prediction], file: Path, theme: str) -> None:
    """Draw the photographs in a row, each above its most probable classes."""
    ink = "white" if theme == "dark" else "black"
    with plt.rc_context({"text.color": ink, "axes.labelcolor": ink, "ytick.color": ink, "font.size": 9}):
        figure, axes = plt.subplots(
            2, len(images), figsize=(11, 3.4), height_ratios=(1.5, 1), layout="constrained", facecolor="none"
        )
        for column, (image, answer) in enumerate(zip(images, answers, strict=True)):
            axes[0, column].imshow(np.asarray(image.resize((330, 220), Image.Resampling.LANCZOS)))
            axes[0, column].axis("off")
            names, probabilities = zip(*reversed(answer.top(SHOWN)), strict=True)
            bars = axes[1, column]
            bars.barh(range(SHOWN), [1] * SHOWN, color=ink, alpha=0.08, height=0.86)
            bars.barh(range(SHOWN), probabilities, color=["#9db7d5"] * (SHOWN - 1) + ["#2f6fb5"], height=0.86)
            for row, (name, probability) in enumerate(zip(names, probabilities, strict=True)):
                bars.text(0.03, row, name, va="center")
                bars.text(0.97, row, f"{100 * probability:.0f} %", va="center", ha="right")
            bars.set_xlim(0, 1)
            bars.axis("off")
        figure.savefig(file, dpi=100, transparent=True)
        plt.close(figure)


def main() -> None:
    """Classify each photograph among ten classes, print the answers and draw them."""
    clf = load("pocket-photo", device="cpu")
    images = [read(name) for name in CLASSES]
    answers = []
    for classes, image in zip(CLASSES.values(), images, strict=True):
        answers.append(clf.set_classes(classes).predict(image))
        print(", ".join(f"{name} {probability:.2f}" for name, probability in answers[-1].top(SHOWN)))
    for theme, name in (("light", "photographs.png"), ("dark", "photographs-dark.png")):
        draw(images, answers, GALLERY / name, theme)


if __name__ == "__main__":
    main()
