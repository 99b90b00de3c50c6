"""``python -m tests.rehearsal FOLDER``: the paper from an empty disk, with small archives, images and models.

Publishes archives of all data sets in their official structure and with full class lists on a local server, fetches
them with ``otpt datasets get`` and ``prepare``, makes stand-ins of all models and checkpoints in their file formats,
and runs ``otpt reproduce paper --go``. It ends with 19 tables and 10 figures, whose numbers mean nothing.
"""

from __future__ import annotations

import io
import json
import random
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from oracles.data.file_server import FileServer
from oracles.methods.maple import maple_state
from oracles.models.medical import BERT, SWIN, write_medclip, write_plip, write_vit
from oracles.models.tiny import open_clip_local_dir
from PIL import Image
from scipy.io import savemat

from otpt.cli import main
from otpt.data import find_entry, load_dataset, published_downloads
from otpt.data.classes import builtin_class_list
from otpt_medical import medclip

SETS = (
    "imagenet", "caltech101", "pets", "cars", "flowers102", "food101", "aircraft", "sun397", "dtd", "eurosat", "ucf101",
    "imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch", "covid", "isic2018", "kather",
)  # fmt: skip
VALIDATION = 60
"""Validation images of a split file."""
TABLES, FIGURES = 19, 10


def _pictures() -> dict[str, list[bytes]]:
    """Return a dozen small images in the formats of the data sets."""
    generator = np.random.default_rng(0)
    formats = {".jpg": "JPEG", ".JPEG": "JPEG", ".png": "PNG", ".tif": "TIFF"}
    pictures: dict[str, list[bytes]] = {suffix: [] for suffix in formats}
    for _ in range(12):
        image = Image.fromarray(generator.integers(0, 256, (6, 7, 3), dtype=np.uint8)).resize((48, 40))
        for suffix, name in formats.items():
            stream = io.BytesIO()
            image.save(stream, name)
            pictures[suffix].append(stream.getvalue())
    return pictures


PICTURES = _pictures()


def picture(path: str) -> bytes:
    """Return an image in the format of a file name."""
    return random.Random(path).choice(PICTURES[Path(path).suffix])


# ---- what the publishers have ---------------------------------------------------------------------------------------


def split_files(name: str) -> dict[str, bytes]:
    """Return images by path below the data root of a set with CoOp's split file, and that file."""
    entry = find_entry(name)
    assert entry is not None
    folder, classes = entry.layouts[0].folder, entry.class_list()
    rows: dict[str, list[tuple[str, int, str]]] = {"train": [], "val": [], "test": []}
    for label, (place, title) in enumerate(zip(classes.folders, classes.names, strict=True)):
        rows["test"].append((f"{place}/test_{label}.jpg", label, title))
        if label < VALIDATION:
            rows["val"].append((f"{place}/val_{label}.jpg", label, title))
            rows["train"].append((f"{place}/train_{label}.jpg", label, title))
    while len(rows["val"]) < VALIDATION:
        path, label, title = rows["val"][len(rows["val"]) % len(classes.names)]
        rows["val"].append((path.replace("val_", f"val_{len(rows['val'])}_"), label, title))
    if name in ("pets", "flowers102"):  # their images lie in one folder
        rows = {split: [(path.replace("/", "_"), *rest) for path, *rest in listed] for split, listed in rows.items()}
    if name == "cars":
        for split, listed in rows.items():
            folder_of_split = "cars_test" if split == "test" else "cars_train"
            rows[split] = [(f"{folder_of_split}/{path.replace('/', '_')}", *rest) for path, *rest in listed]
    files = {f"{folder}/{path}": picture(path) for listed in rows.values() for path, *_ in listed}
    (split_file,) = (file for file in published_downloads()[name].files if file.is_list)
    return {**files, f"{split_file.to}/{split_file.name}": json.dumps(rows).encode()}


def folder_files(name: str) -> dict[str, bytes]:
    """Return an image of each class of a set of class folders."""
    entry = find_entry(name)
    assert entry is not None
    classes = entry.class_list()
    folders = [str(label) for label in range(len(classes.names))] if entry.numeric_folders else classes.folders
    suffix = {"kather": ".tif", "imagenet-v2": ".JPEG", "imagenet-sketch": ".JPEG"}.get(name, ".jpg")
    each = 2 if name == "kather" else 1
    paths = [f"{entry.layouts[0].folder}/{folder}/{folder}_{i}{suffix}" for folder in folders for i in range(each)]
    return {path: picture(path) for path in paths}


def aircraft_files() -> dict[str, bytes]:
    """Return images of FGVC Aircraft and its lists."""
    folders = builtin_class_list("aircraft").folders
    files = {}
    for number, split in enumerate(("test", "val", "train")):
        names = [f"{number}{label:06d}" for label in range(len(folders))]
        lines = [f"{image} {folder}\n" for image, folder in zip(names, folders, strict=True)]
        files[f"fgvc_aircraft/images_variant_{split}.txt"] = "".join(lines).encode()
        files |= {f"fgvc_aircraft/images/{image}.jpg": picture(f"{image}.jpg") for image in names}
    return files


def covid_files() -> dict[str, bytes]:
    """Return eight images of each class of the Kaggle release."""
    names = [f"{kind}/images/{kind}-{i}.png" for kind in ("COVID", "Normal") for i in range(1, 9)]
    return {f"COVID-19_Radiography_Dataset/{name}": picture(name) for name in names}


def isic_files() -> dict[str, bytes]:
    """Return two images of each class in the three splits of ISIC 2018, with the ground truth."""
    entry = find_entry("isic2018")
    assert entry is not None
    classes = entry.class_list().folders
    files = {}
    for split in ("Training", "Validation", "Test"):
        lines = [f"image,{','.join(classes)}"]
        for number in range(2 * len(classes)):
            name = f"ISIC_{split}_{number:04d}"
            lines.append(
                ",".join([name, *("1.0" if label == number % len(classes) else "0.0" for label in range(len(classes)))])
            )
            files[f"ISIC2018/ISIC2018_Task3_{split}_Input/{name}.jpg"] = picture(f"{name}.jpg")
        truth = f"ISIC2018_Task3_{split}_GroundTruth"
        files[f"ISIC2018/{truth}/{truth}.csv"] = "\n".join(lines).encode()
    return files


def imagenet_archives() -> dict[str, bytes]:
    """Return the validation images and the devkit, whose numbers of classes are not in the order of the folders."""
    wnids = builtin_class_list("imagenet").folders
    ids = np.random.default_rng(0).permutation(len(wnids)) + 1
    kinds = (
        "ILSVRC2012_ID",
        "WNID",
        "words",
        "gloss",
        "num_children",
        "children",
        "wordnet_height",
        "num_train_images",
    )
    rows = [(int(number), wnid, wnid, "", 0, [], 0, 1300) for number, wnid in zip(ids, wnids, strict=True)]
    stream = io.BytesIO()
    savemat(stream, {"synsets": np.array(rows, dtype=[(kind, "O") for kind in kinds]).reshape(-1, 1)})
    below = "ILSVRC2012_devkit_t12/data"
    truth = "".join(f"{number}\n" for number in sorted(ids)).encode()
    devkit = {f"{below}/meta.mat": stream.getvalue(), f"{below}/ILSVRC2012_validation_ground_truth.txt": truth}
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, len(wnids) + 1)]
    images = {name: picture(name) for name in names}
    return {"ILSVRC2012_devkit_t12.tar.gz": tar(devkit, "w:gz"), "ILSVRC2012_img_val.tar": tar(images, "w")}


def files_of(name: str) -> dict[str, bytes]:
    """Return the files of a data set by their path below the data root."""
    special = {"aircraft": aircraft_files, "covid": covid_files, "isic2018": isic_files}
    if name in special:
        return special[name]()
    entry = find_entry(name)
    assert entry is not None
    return split_files(name) if entry.reader == "split" else folder_files(name)


def tar(files: Mapping[str, bytes], mode: str) -> bytes:
    """Return a tar archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def packed(name: str, files: Mapping[str, bytes]) -> bytes:
    """Return an archive in the format of a file name."""
    if not name.endswith(".zip"):
        return tar(files, "w:gz" if name.endswith("gz") else "w")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return stream.getvalue()


def archives_of(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files that the publisher of a data set has."""
    if name == "imagenet":
        yield from imagenet_archives().items()
        return
    files = files_of(name)
    for remote in published_downloads()[name].files:
        if remote.is_list:
            yield remote.name, files[f"{remote.to}/{remote.name}"]
            continue
        contents = {}
        for inside, below in remote.place.items():
            for path, data in files.items():
                if path.startswith(f"{below}/"):
                    contents[f"{inside}{path.removeprefix(below)}"] = data
        if remote.inner:
            contents = {f"release/{remote.inner}": packed(remote.inner, contents)}
        if not contents:  # an archive that the rehearsal does not need, such as other annotations
            contents = {f"{next(iter(remote.place))}/readme.txt": b"nothing"}
        yield remote.name, packed(remote.name, contents)


def publish(server: FileServer, folder: Path) -> Path:
    """Put all archives on a server; return a table of sources with the number of images."""
    lines = []
    for name in SETS:
        source = published_downloads()[name]
        lines += [f"[{name}]", f"test_images = {_test_images(name)}"]
        if source.prepare:
            lines += [f"prepare = {json.dumps(source.prepare)}"]
        contents = dict(archives_of(name))
        for remote in source.files:
            address = f"/{name}/{remote.name}"
            server.files[address] = contents[remote.name]
            lines += [f"[[{name}.files]]", f"name = {json.dumps(remote.name)}"]
            lines += [f"url = {json.dumps(server.address + address)}", f"size = {len(contents[remote.name])}"]
            lines += [
                f"{key} = {json.dumps(value)}" for key, value in (("to", remote.to), ("inner", remote.inner)) if value
            ]
            places = ", ".join(f"{json.dumps(inside)} = {json.dumps(below)}" for inside, below in remote.place.items())
            lines += [f"place = {{ {places} }}"] if places else []
    path = folder / "sources.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path  # fmt: skip


def _test_images(name: str) -> int:
    special = {"covid": 8, "isic2018": 14, "kather": 18}
    entry = find_entry(name)
    assert entry is not None
    return special.get(name) or entry.classes or 0


# ---- models and checkpoints -----------------------------------------------------------------------------------------


def write_models(folder: Path) -> dict[str, str]:
    """Write stand-ins of the five models in their file formats; return their specifications by the paper's names."""
    for kind in ("vit", "resnet"):
        open_clip_local_dir(folder / kind, kind)
    write_medclip(folder / "medclip")
    medclip.SWIN.update(SWIN)  # MedCLIP has one size, the stand-in a smaller one
    medclip.BERT.update(BERT)
    write_plip(folder / "plip")
    write_vit(folder / "frozen", hidden_size=32)
    return {
        "ViT-B/16": f"local-dir:{folder / 'vit'}",
        "RN50": f"local-dir:{folder / 'resnet'}",
        "MedCLIP": f"medclip:{folder / 'medclip'}",
        "PLIP": str(folder / "plip"),
        "FPT": str(folder / "frozen"),
    }


def write_checkpoints(folder: Path) -> dict[str, str]:
    """Write a context of CoOp, and MaPLe's prompts for each set, as their trainers do."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return (0.02 * torch.randn(*shape, generator=generator)).half()

    state = {
        "prompt_learner.ctx": normal(4, 64),
        "prompt_learner.token_prefix": normal(1000, 1, 64),
        "prompt_learner.token_suffix": normal(1000, 72, 64),
    }
    write_dassl(folder / "coop.pth.tar-50", state)
    for name in SETS[:11]:
        write_dassl(folder / f"maple-{name}.pth.tar-5", maple_state("vit", 2))
    return {"coop": str(folder / "coop.pth.tar-50"), "maple": str(folder / "maple-{dataset}.pth.tar-5")}


def write_dassl(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write a checkpoint as the trainers of CoOp and MaPLe do."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.002, momentum=0.9)
    torch.save({"state_dict": dict(state), "epoch": 50, "optimizer": optimiser.state_dict(), "val_result": None}, path)


# ---- the rehearsal --------------------------------------------------------------------------------------------------


def fetch(folder: Path, names: Sequence[str] = SETS) -> Path:
    """Publish, download, prepare and check data sets; return their folder."""
    data = folder / "data"
    with FileServer().running() as server:
        table = publish(server, folder)
        direct = [name for name in names if name != "imagenet"]
        run("datasets", "get", *direct, "--data", data, "--sources", table)
        if "imagenet" in names:
            below = folder / "downloads"
            below.mkdir(exist_ok=True)
            for name in ("ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"):
                (below / name).write_bytes(server.files[f"/imagenet/{name}"])
            words = ("datasets", "prepare", "imagenet", "--from", below / "ILSVRC2012_img_val.tar", "--data", data)
            run(*words, expected=(0, 2))  # 1,000 instead of 50,000 images
    for name in names:
        dataset = load_dataset(name, root=data)
        entry = find_entry(name)
        assert entry is not None
        assert len(dataset.class_names) == entry.classes, name
        assert len(dataset) == _test_images(name), name
    return data


def run(*words: object, expected: Sequence[int] = (0,)) -> None:
    """Run a command of otpt, and stop unless it ends with an expected code."""
    line = " ".join(map(str, words))
    print(f"$ otpt {line}", flush=True)
    code = main([str(word) for word in words])
    if code not in expected:
        raise SystemExit(f"'otpt {line}' ended with code {code}.")


def reproduce_words(folder: Path, data: Path, *more: str) -> list[str]:
    """Return the words of the command that makes everything."""
    models, context = write_models(folder / "models"), write_checkpoints(folder / "checkpoints")
    words = ["reproduce", "paper", "--data", str(data), "--out", str(folder / "paper"), "--limit", "2", "--views", "4"]
    words += ["--models", *(f"{name}={spec}" for name, spec in models.items())]
    words += ["--context", *(f"{name}={file}" for name, file in context.items())]
    return [*words, "--epochs", "1", "--shots", "2", "--device", "cpu", "--cache", str(folder / "cache"), *more]


def rehearse(folder: Path) -> None:
    """Do everything, and count the tables and figures."""
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    data = fetch(folder)
    words = reproduce_words(folder, data)
    run(*words)
    run(*words, "--go")
    out = folder / "paper"
    for suffix in (".md", ".tex", ".csv"):
        tables = {path.stem.split("-")[1] for path in (out / "tables").glob(f"*{suffix}")}
        assert len(tables) == TABLES, sorted(tables)
    for suffix in (".png", ".pdf"):
        figures = {path.stem for path in (out / "figures").glob(f"*{suffix}")}
        assert len(figures) == FIGURES, sorted(figures)
    minutes = (time.monotonic() - started) / 60
    print(f"{TABLES} tables and {FIGURES} figures in {out} after {minutes:.1f} minutes.")


if __name__ == "__main__":
    rehearse(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="otpt-rehearsal-")))
