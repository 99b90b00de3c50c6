"""Every data set of the paper in every layout: classes, counts, labels, ids."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path

import pytest
import torchvision
from oracles.data.data_files import put_images, split_text, touch

from otpt import OtptError
from otpt.data import Dataset, find_entry, find_records, list_datasets, load_dataset
from otpt.data.classes import builtin_class_list
from otpt.data.dataset import FAMILIES
from otpt.data.registered import builtin_entries, published_entries
from otpt.registry import FAMILIES as METHOD_FAMILIES

pytestmark = pytest.mark.slow

# The table of the specification: classes, test images, family, AugMix in O-TPT's scripts.
TABLE = {
    "imagenet": (1000, 50000, "fine-grained", False),
    "caltech101": (100, 2465, "fine-grained", True),
    "pets": (37, 3669, "fine-grained", True),
    "cars": (196, 8041, "fine-grained", True),
    "flowers102": (102, 2463, "fine-grained", True),
    "food101": (101, 30300, "fine-grained", True),
    "aircraft": (100, 3333, "fine-grained", True),
    "sun397": (397, 19850, "fine-grained", True),
    "dtd": (47, 1692, "fine-grained", True),
    "eurosat": (10, 8100, "fine-grained", True),
    "ucf101": (101, 3783, "fine-grained", True),
    "imagenet-a": (200, 7500, "shift", True),
    "imagenet-v2": (1000, 10000, "shift", True),
    "imagenet-r": (200, 30000, "shift", True),
    "imagenet-sketch": (1000, 50889, "shift", True),
}
# The first image of the test split, and the folders under the root in which people have the images.
SPLIT_LAYOUTS = {
    "caltech101": (
        "Faces/image_0426.jpg",
        ["caltech-101/101_ObjectCategories", "Caltech101", "caltech101/101_ObjectCategories"],
    ),
    "pets": ("Abyssinian_201.jpg", ["oxford_pets/images", "OxfordPets", "oxford-iiit-pet/images"]),
    "cars": ("cars_test/00001.jpg", ["stanford_cars", "StanfordCar", "StanfordCars"]),
    "flowers102": ("image_00172.jpg", ["oxford_flowers/jpg", "Flower102/jpg", "flowers-102/jpg"]),
    "food101": ("apple_pie/0.jpg", ["food-101/images", "Food101/images"]),
    "sun397": ("a/abbey/0.jpg", ["sun397/SUN397", "SUN397"]),
    "dtd": ("banded/banded_0060.jpg", ["dtd/images", "DTD/images", "dtd/dtd/images"]),
    "eurosat": ("AnnualCrop/AnnualCrop_1048.jpg", ["eurosat/2750", "eurosat"]),
    "ucf101": ("Apply_Eye_Makeup/v_ApplyEyeMakeup_g01_c01.jpg", ["ucf101/UCF-101-midframes", "UCF101"]),
}
FOLDER_LAYOUTS = {
    "imagenet": ["imagenet/images/val", "ImageNet/val", "imagenet/val", "val"],
    "imagenet-a": ["imagenet-adversarial/imagenet-a", "imagenet-a"],
    "imagenet-v2": [
        "imagenetv2/imagenetv2-matched-frequency-format-val",
        "imagenetv2-matched-frequency-format-val",
    ],
    "imagenet-r": ["imagenet-rendition/imagenet-r", "imagenet-r"],
    "imagenet-sketch": ["imagenet-sketch/images", "ImageNet-Sketch/sketch", "ImageNet-Sketch"],
}


def assert_as_published(data: Dataset, name: str) -> None:
    classes, images, family, augmix = TABLE[name]
    assert (len(data.class_names), len(data), data.family, data.augmix) == (classes, images, family, augmix)
    assert (data.name, data.prompt) == (name, "a photo of a")
    assert set(data.labels) == set(range(classes)), "every class is tested"
    assert len(set(data.ids)) == images


def test_the_registry_is_the_published_table() -> None:
    entries = published_entries()
    assert {e.name: (e.classes, e.test_images, e.family, e.augmix) for e in entries.values() if not e.parts} == TABLE
    assert {*SPLIT_LAYOUTS, *FOLDER_LAYOUTS, "aircraft"} == set(TABLE), "all are tested below"
    tested = {(name, folder) for name, (_, folders) in SPLIT_LAYOUTS.items() for folder in folders}
    tested |= {(name, folder) for name, folders in FOLDER_LAYOUTS.items() for folder in folders}
    whole = [entry for entry in entries.values() if not entry.parts]
    listed = {(e.name, layout.folder) for e in whole for layout in e.layouts if (layout.reader or e.reader) != "lists"}
    assert listed == tested
    for entry in entries.values():
        assert len(entry.class_list()) == entry.classes
        assert len(set(entry.class_list().names)) == entry.classes - 2 * entry.allow_duplicates
    assert FAMILIES == METHOD_FAMILIES
    assert set(TABLE) <= {entry.name for entry in list_datasets()}


@pytest.mark.parametrize(
    "alias", ["Flower102", "I", "A", "V", "R", "K", "Pets", "StanfordCar", "Aircraft", "OXFORD-PETS"]
)
def test_names_of_other_programs(alias: str) -> None:
    wanted = {"I": "imagenet", "A": "imagenet-a", "V": "imagenet-v2", "R": "imagenet-r", "K": "imagenet-sketch"}
    wanted |= {"Flower102": "flowers102", "StanfordCar": "cars", "OXFORD-PETS": "pets"}
    entry = find_entry(alias)
    assert entry is not None
    assert entry.name == wanted.get(alias, alias.lower())


@pytest.mark.parametrize("name", SPLIT_LAYOUTS)
def test_split_sets_in_every_layout(tmp_path: Path, name: str) -> None:
    first, (folder, *others) = SPLIT_LAYOUTS[name]
    entry, text = builtin_entries()[name], split_text(name)
    (tmp_path / entry.split_file).write_text(text, encoding="utf-8")
    put_images(tmp_path / folder, [first])
    data = load_dataset(name, root=tmp_path)
    assert_as_published(data, name)
    names = data.class_names
    rows = zip(data.ids, data.labels, strict=True)
    listed = json.loads(text)["test"]
    assert [[id, label, names[label]] for id, label in rows] == listed
    assert (data[0].source, data[0].id) == (tmp_path / folder / first, first)
    for other in others:  # an id does not depend on the layout
        root = tmp_path / "other" / other.replace("/", "+")
        put_images(root / other, [first])
        (root / entry.split_file).write_text(json.dumps({"test": listed[:3]}), encoding="utf-8")
        found = find_records(entry, root)
        assert (found.folder, [each.id for each in found.records]) == (root / other, [row[0] for row in listed[:3]])


@pytest.mark.parametrize("place", [".", "data_splits", "eurosat", "eurosat/2750"])
def test_the_split_file_may_lie_in_several_places(tmp_path: Path, place: str) -> None:
    put_images(tmp_path / "eurosat/2750", ["AnnualCrop/AnnualCrop_1048.jpg"])
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "split_zhou_EuroSAT.json").write_text(split_text("eurosat"))
    assert_as_published(load_dataset("eurosat", root=tmp_path), "eurosat")


def test_the_split_file_holds_other_splits_too(tmp_path: Path) -> None:
    text = split_text("dtd")
    (tmp_path / "split_zhou_DescribableTextures.json").write_text(text)
    put_images(tmp_path / "dtd/images", [row[0] for row in json.loads(text)["val"][:1]])
    val = load_dataset("dtd", root=tmp_path, split="val")
    assert len(val) == 1128
    assert val.ids[0] == json.loads(text)["val"][0][0]


def test_the_root_may_be_the_set_itself(tmp_path: Path) -> None:
    (tmp_path / "dtd").mkdir()
    (tmp_path / "dtd/split_zhou_DescribableTextures.json").write_text(split_text("dtd"))
    put_images(tmp_path / "dtd/images", ["banded/banded_0060.jpg"])
    inside = load_dataset("dtd", root=tmp_path / "dtd")
    assert inside.fingerprint == load_dataset("dtd", root=tmp_path).fingerprint


def test_food101_is_right_unless_the_papers_names_are_asked_for(tmp_path: Path) -> None:
    put_images(tmp_path / "food-101/images", ["apple_pie/0.jpg"])
    rows = json.loads(split_text("food101"))["test"][::100]
    (tmp_path / "split_zhou_Food101.json").write_text(json.dumps({"test": rows}))
    with pytest.warns(UserWarning, match="303 test images .*, 30300 were published"):
        right, official = (load_dataset("food101", root=tmp_path, official_names=each) for each in (False, True))
    assert right.class_names[16:18] == ("cheese_plate", "cheesecake")
    assert official.class_names[16:18] == ("cheesecake", "cheese_plate")
    assert right.labels == official.labels
    assert right.class_names == tuple(sorted(right.class_names)), "folders in alphabetical order, as torchvision's"
    differ = [i for i in range(101) if right.class_names[i] != official.class_names[i]]
    assert differ == [16, 17]
    assert right.fingerprint != official.fingerprint
    copy = pickle.loads(pickle.dumps(official))
    assert (copy.fingerprint, copy[5]) == (official.fingerprint, official[5])


def test_pets_without_split_file_as_torchvision_reads_them(tmp_path: Path) -> None:
    literal = json.loads(split_text("pets"))["test"]
    put_images(tmp_path / "oxford-iiit-pet/images", [literal[0][0]])
    listing = tmp_path / "oxford-iiit-pet/annotations/test.txt"
    listing.parent.mkdir()
    listing.write_text("".join(f"{path.removesuffix('.jpg')} {label + 1} 1 1\n" for path, label, _ in literal))
    data = load_dataset("pets", root=tmp_path)
    assert_as_published(data, "pets")
    oracle = torchvision.datasets.OxfordIIITPet(tmp_path, split="test")
    assert [(s.source, s.label) for s in data] == list(zip(oracle._images, oracle._labels, strict=True))
    assert [name.replace("_", " ") for name in data.class_names] == [name.lower() for name in oracle.classes]


def test_sun397_by_its_official_list_as_torchvision_reads_it(tmp_path: Path) -> None:
    folders = builtin_class_list("sun397").folders
    (tmp_path / "SUN397").mkdir()
    (tmp_path / "SUN397/ClassName.txt").write_text("".join(f"/{folder}\n" for folder in folders))
    files = [f"{folder}/sun_{i:02d}.jpg" for folder in folders for i in range(50)]
    (tmp_path / "SUN397/Testing_01.txt").write_text("".join(f"/{file}\n" for file in files))
    touch(tmp_path / "SUN397", files[::50])
    data = load_dataset("sun397", root=tmp_path)
    assert_as_published(data, "sun397")
    oracle = torchvision.datasets.SUN397(tmp_path)
    labels = dict(zip(oracle._image_files, oracle._labels, strict=True))
    assert {data[i].source: data.labels[i] for i in range(0, len(data), 50)} == labels
    assert data.class_names[8:10] == ("outdoor apartment_building", "indoor apse")
    assert data.class_names[-1] == "youth_hostel"
    assert tuple(sorted(folders)) == folders


@pytest.mark.parametrize("folder", ["fgvc_aircraft", "fgvc-aircraft-2013b/data"])
def test_aircraft(tmp_path: Path, folder: str) -> None:
    names = builtin_class_list("aircraft").names
    base = tmp_path / folder
    put_images(base / "images", ["0000000.jpg"])
    (base / "variants.txt").write_text("".join(f"{name}\n" for name in names))
    lines = [f"{i:07d} {names[i * 100 // 3333]}" for i in range(3333)]
    (base / "images_variant_test.txt").write_text("\n".join(lines) + "\n")
    data = load_dataset("aircraft", root=tmp_path)
    assert_as_published(data, "aircraft")
    if "2013b" in folder:
        oracle = torchvision.datasets.FGVCAircraft(tmp_path, split="test")
        assert oracle.classes == list(data.class_names)
        read = list(zip(oracle._image_files, oracle._labels, strict=True))
        assert [(str(s.source), s.label) for s in data] == read
    names_in_order = [data.class_names[s.label] for s in data]
    assert names_in_order == [line.split(" ", 1)[1] for line in lines]


def class_counts(name: str) -> dict[str, int]:
    """As many files in each class folder as make up the published number."""
    classes, images, *_ = TABLE[name]
    folders = builtin_entries()[name].class_list().folders
    if name == "imagenet-v2":
        folders = tuple(map(str, range(1000)))
    return {f: images // classes + (i < images % classes) for i, f in enumerate(folders)}


@pytest.mark.parametrize("name", FOLDER_LAYOUTS)
def test_folder_sets_in_every_layout(tmp_path: Path, name: str) -> None:
    counts = class_counts(name)
    touch(tmp_path / "pool", (f"{i}.JPEG" for i in range(100)))
    for count in {count % 100 for count in counts.values()}:
        touch(tmp_path / f"pool-{count}", (f"{i}.JPEG" for i in range(count)))
    made = tmp_path / "made"
    for folder, count in counts.items():
        # Links to a few folders of at most 100 files: 50 000 images without 50 000 files.
        (made / folder).mkdir(parents=True)
        for hundred in range(count // 100):
            (made / folder / f"{hundred}").symlink_to(tmp_path / "pool", target_is_directory=True)
        (made / folder / "rest").symlink_to(tmp_path / f"pool-{count % 100}", target_is_directory=True)
    (made / "README.txt").write_text("no image")
    (made / ".hidden").mkdir()
    order = list(counts)
    first, *others = FOLDER_LAYOUTS[name]
    (tmp_path / first).parent.mkdir(parents=True, exist_ok=True)
    made = made.rename(tmp_path / first)
    data = load_dataset(name, root=tmp_path)
    assert_as_published(data, name)
    assert data[len(data) - 1].source == made / data.ids[-1]
    assert [order[label] for label in data.labels] == [id.split("/")[0] for id in data.ids]
    assert Counter(data.labels) == Counter(dict(enumerate(counts.values())))
    if name == "imagenet-v2":
        assert (order[2], data.class_names[2]) == ("2", "great white shark"), "not folder 10, as by alphabet"
    small = tmp_path / "small"
    touch(small, (f"{folder}/0.JPEG" for folder in counts))
    for layout in others:  # with one image per class
        root = tmp_path / layout.replace("/", "+") / "root"
        (root / layout).parent.mkdir(parents=True)
        small = small.rename(root / layout)
        found = find_records(builtin_entries()[name], root)
        assert (found.folder, [each.label for each in found.records]) == (small, list(range(len(order))))


def test_imagenet_names_and_synsets() -> None:
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    info = pytest.importorskip("timm.data.imagenet_info")
    folder = Path(info.__file__).parent / "_info"
    for name, file in {"imagenet": "imagenet", "imagenet-a": "imagenet_a", "imagenet-r": "imagenet_r"}.items():
        classes = builtin_entries()[name].class_list()
        synsets = (folder / f"{file}_synsets.txt").read_text().split()
        assert list(classes.folders) == synsets
        every = (folder / "imagenet_synsets.txt").read_text().split()
        assert list(classes.names) == [IMAGENET_CLASSNAMES[every.index(synset)] for synset in synsets]
    names = builtin_entries()["imagenet"].class_list().names
    assert names[:2] == ("tench", "goldfish")
    twice = {name: [i for i, other in enumerate(names) if other == name] for name in ("missile", "sunglasses")}
    assert twice == {"missile": [657, 744], "sunglasses": [836, 837]}
    assert len(set(names)) == 998
    all_folders = builtin_class_list("imagenet").folders
    a_indices = [all_folders.index(folder) for folder in builtin_class_list("imagenet-a").folders]
    assert a_indices[:6] == [6, 11, 13, 15, 17, 22]
    assert a_indices == sorted(a_indices)
    for name in ("imagenet", "imagenet-v2", "imagenet-sketch"):
        assert builtin_entries()[name].allow_duplicates
    assert not builtin_entries()["imagenet-a"].allow_duplicates


def test_imagenet_c_is_read_by_corruption_and_severity(tmp_path: Path) -> None:
    names = builtin_class_list("imagenet").folders
    for name in names:
        (tmp_path / "imagenet-c/fog/3" / name).mkdir(parents=True)
        (tmp_path / "imagenet-c/fog/3" / name / "1.JPEG").touch()
    with pytest.warns(UserWarning, match="1000 test images"):
        data = load_dataset("ImageNet-C/fog/3", root=tmp_path)
    assert (data.name, len(data), data.family) == ("imagenet-c/fog/3", 1000, "shift")
    assert data.labels == tuple(range(1000))
    assert data.ids[0] == f"{names[0]}/1.JPEG"
    assert len(builtin_entries()["imagenet-c"].parts) == 15
    for wrong in ("imagenet-c", "imagenet-c/fog", "imagenet-c/fog/6", "imagenet-c/dust/1"):
        with pytest.raises(OtptError, match=wrong):
            load_dataset(wrong, root=tmp_path)
