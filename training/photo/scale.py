"""The logit scale, from cut-out photographs: ``python -m training.photo.scale WORK``.

Debian's ``tuxpaint-stamps-default`` (GPL-2+) has some 300 photographs of things, animals and plants with English names.
They are classified among random choices of 5 to 100 of their names; printed are the mean NLL by logit scale, accuracy
and confidence. Only the best scale, one number, goes into ``export.Geometry``; it was also used to compare ways to mix
ImageNet's classes. No other photographs were looked at.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from otpt import load
from otpt.prompts import MEMORY_BUDGET, Prompt
from otpt.rejection import text_features_of

PACKAGE = "tuxpaint-stamps-default"
TOPICS = (
    "animals", "food", "clothes", "household", "hobbies", "plants", "medical", "military", "vehicles", "sports",
)  # fmt: skip
DRAWN = ("cartoon", "toys", "plastic")
SIZES, DRAWS = (5, 10, 20, 50, 100), 30
SCALES = torch.arange(14.0, 61.0, 2.0)


def download(work: Path) -> Path:
    """Download and unpack the stamps, and return their folder."""
    stamps = work / "sources" / "stamps"
    if not stamps.is_dir():
        subprocess.run(["apt-get", "download", PACKAGE], cwd=work / "sources", check=True)
        (package,) = (work / "sources").glob(f"{PACKAGE}_*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(package), str(stamps)], check=True)
        package.unlink()
    return stamps / "usr" / "share" / "tuxpaint" / "stamps"


def read_stamps(folder: Path) -> list[tuple[Path, str]]:
    """Return photographs and their names; drawings and names that are sentences are left out."""
    stamps = []
    for file in sorted(folder.rglob("*.png")):
        place = str(file.relative_to(folder))
        text = file.with_suffix(".txt")
        if not place.startswith(TOPICS) or any(word in place for word in DRAWN) or not text.is_file():
            continue
        name = text.read_text(encoding="utf-8", errors="replace").splitlines()[0].strip().rstrip(".!")
        name = re.sub(r"^(An?|The|Some|Two|Three)\s+", "", name).lower()
        if len(name.split()) <= 4 and not re.search(r"[!?(]", name):
            stamps.append((file, name))
    return stamps


def on_grey(file: Path) -> Image.Image:
    """Return a cut-out in the middle of a light grey square."""
    with Image.open(file) as image:
        cut_out = image.convert("RGBA")
    side = max(cut_out.size) * 11 // 10
    square = Image.new("RGBA", (side, side), (225, 228, 230, 255))
    square.alpha_composite(cut_out, ((side - cut_out.width) // 2, (side - cut_out.height) // 2))
    return square.convert("RGB")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    stamps = read_stamps(download(parser.parse_args().work))
    clf = load("pocket-photo", device="cpu")
    names = sorted({name for _, name in stamps})
    labels = torch.tensor([names.index(name) for _, name in stamps])
    features = torch.as_tensor(clf.embed([on_grey(file) for file, _ in stamps], workers=0))
    cosines = features @ text_features_of(clf.backbone, names, Prompt(), MEMORY_BUDGET).T
    generator = torch.Generator().manual_seed(0)
    tasks = []
    for size in SIZES:
        for _ in range(DRAWS):
            columns = torch.randperm(len(names), generator=generator)[:size].sort().values
            rows = torch.isin(labels, columns)
            tasks.append((size, cosines[rows][:, columns], torch.searchsorted(columns, labels[rows])))
    tasks.append((len(names), cosines, labels))
    accuracy = (cosines.argmax(1) == labels).float().mean()
    print(f"{len(stamps)} stamps of {len(names)} names, accuracy {accuracy:.3f}, now {clf.backbone.logit_scale:.1f}")
    losses = [sum(float(cross_entropy(scale * c, y)) for _, c, y in tasks) / len(tasks) for scale in SCALES]
    best = SCALES[int(torch.tensor(losses).argmin())]
    for scale, loss in zip(SCALES, losses, strict=True):
        print(f"{scale:.0f}: {loss:.4f}{' (best)' if scale == best else ''}")
    for size in (*SIZES, len(names)):
        chosen = [((best * c).softmax(1), y) for classes, c, y in tasks if classes == size]
        confidence = torch.cat([p.max(1).values for p, _ in chosen]).mean()
        correct = torch.cat([p.argmax(1) == y for p, y in chosen]).float().mean()
        print(f"{size} classes: accuracy {correct:.3f}, confidence {confidence:.3f}")


if __name__ == "__main__":
    main()
