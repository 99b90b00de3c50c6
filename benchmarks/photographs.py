"""The embedded model of photographs: ``python -m benchmarks.photographs WORK --photographs FOLDER``.

FOLDER has ``caltech101/`` and ``eurosat/``, each with ``classes.txt`` and a folder of images per class. Three sets are
made of them: Caltech101's classes, twenty coarse everyday classes (``COARSE``) and EuroSAT's classes. The model's logit
scale and everything else were fixed on other images. The runs grow: a stopped command continues.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from otpt.cli import main as otpt
from otpt.runs import Run, results_frame

COARSE = {
    "cat": ("leopard", "cougar body", "cougar face", "wild cat"),
    "dog": ("dalmatian",),
    "bird": ("emu", "flamingo", "flamingo head", "ibis", "pigeon", "rooster"),
    "insect": ("ant", "butterfly", "dragonfly", "mayfly"),
    "elephant": ("elephant",),
    "crab": ("crab", "crayfish", "lobster"),
    "airplane": ("airplane",),
    "boat": ("ferry", "ketch", "schooner"),
    "car": ("car side",),
    "motorcycle": ("motorbike",),
    "helicopter": ("helicopter",),
    "musical instrument": ("accordion", "electric guitar", "euphonium", "grand piano", "mandolin", "saxophone"),
    "chair": ("chair", "windsor chair"),
    "lamp": ("lamp", "chandelier"),
    "flower": ("sunflower", "lotus", "water lilly"),
    "building": ("minaret", "pagoda", "pyramid"),
    "telephone": ("cellphone",),
    "computer": ("laptop",),
    "umbrella": ("umbrella",),
    "tree": ("bonsai", "joshua tree"),
}
"""Everyday classes and the classes of Caltech101 that belong to them; the other photographs are left out."""
COLUMNS = {"accuracy": "accuracy %", "top5_accuracy": "top five %", "ece": "ECE %", "debiased_ece": "debiased ECE %"}
METHODS = ("zero-shot", "tpt", "o-tpt", "confident-half")


def write_coarse(folder: Path, target: Path) -> None:
    """Write a table of the photographs of the coarse classes."""
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label"))
        for label, names in COARSE.items():
            for name in names:
                writer.writerows((path, label) for path in sorted((folder / "caltech101" / name).glob("*.jpg")))


def evaluate(options: argparse.Namespace, name: str, dataset: Path, methods: tuple[str, ...], limit: int | None) -> str:
    """Return rows of a Markdown table."""
    folder = options.work / f"{name}-{'all' if limit is None else limit}"
    command = ["evaluate", str(dataset), "--backbone", options.model, "--methods", *methods, "--device", "cpu"]
    command += ["--workers", str(options.workers), "--cache", str(options.work / "cache"), "--out", str(folder)]
    command += ["--limit", str(limit)] if limit else []
    if otpt(command):
        raise SystemExit(f"otpt {' '.join(command)} failed")
    lines = []
    for _, row in results_frame(Run(folder)).iterrows():
        percent = [f"{100 * row[metric]:.1f}" for metric in COLUMNS]
        cells = [name, row["classes"], row["images"], f"`{row['method']}`", *percent]
        cells += [f"{row['nll']:.3f}", f"{row['mean_cosine']:.2f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Evaluate what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for the runs and the feature cache")
    parser.add_argument("--photographs", type=Path, required=True, help="a folder with caltech101/ and eurosat/")
    parser.add_argument("--model", default="pocket-photo")
    parser.add_argument("--images", type=int, default=200, help="of each set for methods with views, 0: none")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    coarse = options.work / "coarse.csv"
    write_coarse(options.photographs, coarse)
    sets = {
        "Caltech101": options.photographs / "caltech101",
        "coarse": coarse,
        "EuroSAT": options.photographs / "eurosat",
    }
    lines = [evaluate(options, name, dataset, METHODS[:1], None) for name, dataset in sets.items()]
    if options.images:
        lines += [evaluate(options, name, dataset, METHODS, options.images) for name, dataset in sets.items()]
    titles = ["set", "classes", "images", "method", *COLUMNS.values(), "NLL", "mean cosine"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
