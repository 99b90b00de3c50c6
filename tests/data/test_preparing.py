"""``otpt datasets prepare``: ImageNet's validation images as torchvision sorts them, middle frames of videos."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from oracles.command import run
from oracles.data.data_files import JPEG
from oracles.data.file_server import FileServer
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import imagenet as torchvision_imagenet

from otpt import OtptError
from otpt.data import Downloader, find_entry, find_records
from otpt.data.archives import write_member
from otpt.data.classes import builtin_class_list
from otpt.data.preparing import prepare_imagenet, prepare_ucf101

WNIDS = list(builtin_class_list("imagenet").folders)
DEVKIT, IMAGES = "ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_img_val.tar"


def write_tar(path: Path, contents: Mapping[str, bytes]) -> Path:
    """Write a tar archive, compressed if its name says so."""
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def meta(wnids: list[str], ids: np.ndarray) -> bytes:
    """Return a meta.mat as in the devkit: leaves, and inner nodes that have children."""
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("gloss", "O"), ("num_children", "O")]
    kinds += [("children", "O"), ("wordnet_height", "O"), ("num_train_images", "O")]
    rows = [
        (int(number), wnid, f"words of {wnid}", "", 0, [], 0, 1300) for number, wnid in zip(ids, wnids, strict=True)
    ]
    rows.append((len(wnids) + 1, "n00001740", "entity", "", 2, [1, 2], 1, 0))
    stream = io.BytesIO()
    savemat(stream, {"synsets": np.array(rows, dtype=kinds).reshape(-1, 1)})
    return stream.getvalue()


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A devkit whose numbers are not in the order of the ids, and one or two images of each class."""
    folder = tmp_path_factory.mktemp("archives")
    generator = np.random.default_rng(0)
    ids = generator.permutation(1000) + 1
    truth = generator.permutation(np.concatenate([ids, ids[:100]]))
    below = "ILSVRC2012_devkit_t12/data"
    write_tar(
        folder / DEVKIT,
        {
            f"{below}/meta.mat": meta(WNIDS, ids),
            f"{below}/ILSVRC2012_validation_ground_truth.txt": "".join(f"{line}\n" for line in truth).encode(),
            f"{below}/readme.txt": b"",
        },
    )
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, len(truth) + 1)]
    write_tar(folder / IMAGES, {name: JPEG + name.encode() for name in names})
    return folder


def placed(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.JPEG")}


def test_imagenet_is_sorted_as_by_torchvision(
    capsys, archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, "datasets", "prepare", "imagenet", "--from", archives / IMAGES, "--data", tmp_path)
    assert (code, "1100 images written" in out) == (2, True), "it is checked: 50000 images are published"
    assert "1100 test images, 50000 published" in out
    oracle = tmp_path / "oracle"
    oracle.mkdir()
    for name in (DEVKIT, IMAGES):
        (oracle / name).symlink_to(archives / name)
    monkeypatch.setattr(torchvision_imagenet, "_verify_archive", lambda *_: None)
    torchvision_imagenet.parse_devkit_archive(oracle)
    torchvision_imagenet.parse_val_archive(oracle)
    assert placed(tmp_path / "imagenet/images/val") == placed(oracle / "val")
    entry = find_entry("imagenet")
    assert entry is not None
    found = find_records(entry, tmp_path)
    assert {record.file.split("/")[0] for record in found.records} == set(WNIDS)


def test_imagenet_continues_where_it_stopped(archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import otpt.data.preparing as preparing

    written: list[Path] = []

    def stop(member: object, target: Path) -> bool:
        if len(written) == 300:
            raise OSError(28, "No space left on device")
        written.append(target)
        return write_member(member, target)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_member", stop)
        with pytest.raises(OtptError, match="No space left"):
            prepare_imagenet(archives / IMAGES, archives / DEVKIT, tmp_path, show=False)
    assert prepare_imagenet(archives / IMAGES, archives / DEVKIT, tmp_path, show=False) == 800
    folder = tmp_path / "images"
    folder.mkdir()
    with tarfile.open(archives / IMAGES) as archive:
        archive.extractall(folder, filter="data")
    assert prepare_imagenet(folder, archives / DEVKIT, tmp_path, show=False) == 0, "the images themselves are the same"


def test_wrong_archives_of_imagenet(capsys, archives: Path, tmp_path: Path) -> None:
    train = write_tar(tmp_path / "ILSVRC2012_img_train.tar", {"n01440764.tar": b"x"})
    short = tmp_path / "short.tar"
    short.write_bytes((archives / IMAGES).read_bytes()[:200_000])
    few = write_tar(tmp_path / "few.tar", {"ILSVRC2012_val_00000001.JPEG": JPEG})
    many = write_tar(tmp_path / "many.tar", {"ILSVRC2012_val_00050000.JPEG": JPEG})
    page = tmp_path / "page.tar"
    page.write_text("<!doctype html>")
    outside = write_tar(tmp_path / "outside.tar", {"../ILSVRC2012_val_00000001.JPEG": JPEG})
    other = write_tar(tmp_path / "other.tar.gz", {"data/meta.mat": b"no matrix"})
    broken = write_tar(
        tmp_path / "broken.tar.gz", {"meta.mat": b"no", "ILSVRC2012_validation_ground_truth.txt": b"1\n2\n"}
    )
    foreign = write_tar(
        tmp_path / "foreign.tar.gz",
        {"meta.mat": meta(["n1", "n2"], np.array([1, 2])), "ILSVRC2012_validation_ground_truth.txt": b"1\n2\n"},
    )
    cases = [
        (train, DEVKIT, "n01440764.tar"),
        (short, DEVKIT, "of the 1100"),
        (few, DEVKIT, "1 of the 1100"),
        (many, DEVKIT, "1100 images"),
        (page, DEVKIT, "web page"),
        (outside, DEVKIT, "outside"),
        (tmp_path / "none.tar", DEVKIT, "none.tar"),
        (archives / IMAGES, other, "other.tar.gz"),
        (archives / IMAGES, broken, "broken.tar.gz"),
        (archives / IMAGES, foreign, "2 classes"),
        (archives / IMAGES, tmp_path / "none.tar.gz", "none.tar.gz"),
        (archives / IMAGES, archives / IMAGES, "devkit"),
    ]
    for images, devkit, named in cases:
        words = ("--from", images, "--devkit", archives / devkit, "--data", tmp_path / "data")
        code, _, err = run(capsys, "datasets", "prepare", "imagenet", *words)
        assert (code, err.count("\n"), named in err) == (2, 1, True), (images, devkit, err)


def write_video(path: Path, frames: int, fps: int = 25) -> None:
    """Write a video whose frame i has the grey value 8·i."""
    av = pytest.importorskip("av")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(frames):
            image = Image.new("RGB", (64, 48), (8 * number,) * 3)
            container.mux(stream.encode(av.VideoFrame.from_image(image)))
        container.mux(stream.encode())


def test_middle_frames_of_videos(capsys, tmp_path: Path) -> None:
    videos = tmp_path / "UCF-101"
    write_video(videos / "ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi", 21)
    write_video(videos / "HandstandPushups/v_HandStandPushups_g01_c02.avi", 4)
    assert prepare_ucf101(videos, tmp_path / "data", show=False) == 2
    frames = tmp_path / "data/ucf101/UCF-101-midframes"
    folders = {name.replace("_", "").lower(): name for name in builtin_class_list("ucf101").folders}
    assert "Apply_Eye_Makeup" in folders.values()
    for name, middle in (
        ("ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01", 10),
        ("HandstandPushups/v_HandStandPushups_g01_c02", 2),
    ):
        folder, _, stem = name.partition("/")
        image = Image.open(frames / folders[folder.lower()] / f"{stem}.jpg")
        assert image.size == (64, 48)
        assert abs(float(np.asarray(image).mean()) - 8 * middle) < 3, name
    assert prepare_ucf101(videos, tmp_path / "data", show=False) == 0
    packed = tmp_path / "UCF101_videos.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in videos.rglob("*.avi"):
            archive.write(path, f"UCF101/{path.relative_to(videos)}")
    assert prepare_ucf101(packed, tmp_path / "again", show=False) == 2
    code, out, err = run(capsys, "datasets", "prepare", "ucf101", "--from", packed, "--data", tmp_path / "again")
    assert (code, "0 images written" in out, "split_zhou_UCF101" in err) == (2, True, True), "the check needs the split"


def test_wrong_videos(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    videos = tmp_path / "videos"
    (videos / "ApplyEyeMakeup").mkdir(parents=True)
    words = ("datasets", "prepare", "ucf101", "--data", tmp_path, "--from")
    rar = tmp_path / "UCF101.rar"
    rar.write_bytes(b"Rar!\x1a\x07\x00")
    for source, named in ((videos, "unrar"), (rar, "RAR"), (tmp_path / "none", "none")):
        code, _, err = run(capsys, *words, source)
        assert (code, err.count("\n"), named in err) == (2, 1, True), err
    (videos / "ApplyEyeMakeup/v.avi").write_bytes(b"no video")
    code, _, err = run(capsys, *words, videos)
    assert (code, err.count("\n"), "v.avi" in err) == (2, 1, True)
    write_video(videos / "Unknown/v.avi", 3)
    (videos / "ApplyEyeMakeup/v.avi").unlink()
    code, _, err = run(capsys, *words, videos)
    assert (code, "Unknown/v.avi" in err) == (2, True)
    code, _, err = run(capsys, *words, videos, "--devkit", "x")
    assert (code, "--devkit" in err) == (2, True)
    (videos / "Unknown").rename(videos / "ApplyLipstick")
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    code, _, err = run(capsys, *words, videos)
    assert (code, "otpt[video]" in err) == (2, True)


def test_get_sorts_imagenet_from_a_mirror(archives: Path, tmp_path: Path) -> None:
    table = tmp_path / "sources.toml"
    table.write_text(
        '[imagenet]\ntest_images = 1100\nprepare = "imagenet"\n'
        f'[[imagenet.files]]\nname = "{DEVKIT}"\n[[imagenet.files]]\nname = "{IMAGES}"\n'
    )
    with FileServer().running() as server:
        for name in (DEVKIT, IMAGES):
            server.files[f"/imagenet/{name}"] = (archives / name).read_bytes()
        report = Downloader(tmp_path, mirror=server.address, sources=table, show=False).get("imagenet")
        assert (report.ok, report.images, len(server.requests)) == (True, 1100, 2)
        assert Downloader(tmp_path, mirror=server.address, sources=table, show=False).get("imagenet").ok
        assert len(server.requests) == 2
