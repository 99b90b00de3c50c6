"""Data sets that need more than unpacking: ImageNet's validation images by class, middle frames of UCF101's videos."""

from __future__ import annotations

import importlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from PIL import Image
from scipy.io import loadmat

from otpt.data.archives import Member, archive_errors, check_name, members, write_member
from otpt.data.classes import builtin_class_list
from otpt.errors import OtptError, describe_error
from otpt.progress import Progress

IMAGENET = "imagenet/images/val"
"""Folder of ImageNet's validation images below the data root, in CoOp's layout."""
FRAMES = "ucf101/UCF-101-midframes"
"""Folder of UCF101's frames below the data root, in CoOp's layout."""
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
VIDEOS = (".avi", ".mp4", ".mkv", ".webm", ".mov")
_META, _TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"
_VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG", re.IGNORECASE)
_QUALITY = 95  # of JPEG frames


# ---- ImageNet -------------------------------------------------------------------------------------------------------


def prepare_imagenet(images: Path, devkit: Path, root: Path, *, show: bool = True) -> int:
    """Sort ImageNet's validation images into one folder per class.

    Images that are already in their place stay, so that an interrupted command continues.

    Args:
        images: ``ILSVRC2012_img_val.tar``, or the folder of its images.
        devkit: ``ILSVRC2012_devkit_t12.tar.gz``, or its folder.
        root: the data root; the images are sorted into its ``imagenet/images/val``.
        show: whether to show progress.

    Returns:
        Number of images that were sorted now.

    Raises:
        OtptError: if these are other archives, or the images are not those of the ground truth.
    """
    folders = validation_folders(devkit)
    written = 0
    numbers: set[int] = set()
    with Progress(show=show) as progress, archive_errors(images):
        progress.start(0, len(folders))
        for member in _files_of(images):
            match = _VALIDATION.fullmatch(PurePosixPath(member.name).name)
            if match is None:
                raise OtptError(
                    f"{str(images)!r} has the file {member.name!r}, which is no validation image of ImageNet; expected "
                    "ILSVRC2012_img_val.tar with ILSVRC2012_val_00000001.JPEG and so on."
                )
            number = int(match[1])
            if not 1 <= number <= len(folders):
                raise OtptError(
                    f"{str(images)!r} has the image {member.name!r}, but the ground truth has {len(folders)} images; "
                    "the devkit belongs to other images."
                )
            numbers.add(number)
            written += write_member(member, root / IMAGENET / folders[number - 1] / PurePosixPath(member.name).name)
            progress.update(len(numbers))
    if len(numbers) != len(folders):
        raise OtptError(
            f"{str(images)!r} has {len(numbers)} of the {len(folders)} validation images; get the complete archive."
        )
    return written


def validation_folders(devkit: Path) -> list[str]:
    """Return the WordNet id of each validation image, in the order of their numbers, from ImageNet's devkit."""
    files: dict[str, bytes] = {}
    with archive_errors(devkit):
        for member in _files_of(devkit):
            name = PurePosixPath(member.name).name
            if name in (_META, _TRUTH):
                with member.open() as stream:
                    files[name] = stream.read()
    if len(files) < 2:
        raise OtptError(
            f"{str(devkit)!r} has no {_META} and {_TRUTH}, so it is not the devkit of ILSVRC 2012; expected {DEVKIT}."
        )
    try:
        synsets = loadmat(io.BytesIO(files[_META]), squeeze_me=True)["synsets"]
        wnids = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in np.atleast_1d(synsets)}
        folders = [wnids[int(line)] for line in files[_TRUTH].split()]
    except Exception as error:  # scipy raises errors of many kinds for damaged files
        raise OtptError(f"The devkit {str(devkit)!r} is damaged ({describe_error(error)}); get it again.") from None
    strange = set(folders).difference(builtin_class_list("imagenet").folders)
    if strange or not folders:
        raise OtptError(
            f"The devkit {str(devkit)!r} names {len(strange)} classes that are not ImageNet's 1000; expected {DEVKIT}."
        )
    return folders


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _files_of(path: Path) -> Iterator[Member]:
    """Yield the files of an archive or below a folder."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                yield Member(file.relative_to(path).as_posix(), file.stat().st_size, partial(_open, file))
        return
    if not path.exists():
        raise OtptError(f"There is no archive or folder {str(path)!r}; check the path.")
    for member in members(path):
        check_name(member.name, path)
        yield member


def _prepare_files(files: Mapping[str, Path], root: Path, show: bool) -> int:
    return prepare_imagenet(files["ILSVRC2012_img_val.tar"], files[DEVKIT], root, show=show)


# ---- UCF101 ---------------------------------------------------------------------------------------------------------


def prepare_ucf101(videos: Path, root: Path, *, show: bool = True) -> int:
    """Save the middle frame of each video of UCF101, in the folders of CoOp.

    Frame ⌊n/2⌋ of n is decoded and saved as JPEG. CoOp does not say how it drew and compressed its frames, so results
    may differ slightly from those on its ``UCF-101-midframes.zip``. Frames that are already there stay.

    Args:
        videos: the folder ``UCF-101`` of videos, or a zip or tar archive of it.
        root: the data root; the frames are saved in its ``ucf101/UCF-101-midframes``.
        show: whether to show progress.

    Returns:
        Number of frames that were saved now.

    Raises:
        OtptError: if these are other videos, or one cannot be decoded.
    """
    folders = {_letters(name): name for name in builtin_class_list("ucf101").folders}
    saved = count = 0
    with Progress(show=show) as progress, archive_errors(videos):
        progress.start(0, None)
        for member in _files_of(videos):
            path = PurePosixPath(member.name)
            if path.suffix.lower() not in VIDEOS:
                continue
            folder = folders.get(_letters(path.parent.name))
            if folder is None:
                raise OtptError(
                    f"{str(videos)!r} has the video {member.name!r}, whose folder is no class of UCF101; expected "
                    "folders such as ApplyEyeMakeup."
                )
            count += 1
            saved += _save_frame(member, root / FRAMES / folder / f"{path.stem}.jpg", videos)
            progress.update(count)
    if not count:
        raise OtptError(
            f"{str(videos)!r} has no videos ({', '.join(VIDEOS)}); expected the folder UCF-101; unpack UCF101.rar with "
            "'unrar x UCF101.rar' first."
        )
    return saved


def _save_frame(member: Member, target: Path, videos: Path) -> bool:
    """Save the middle frame of a video, unless it is there."""
    if target.exists():
        return False
    with member.open() as stream:
        data = stream.read()
    try:
        frame = middle_frame(data)
    except OtptError as error:
        raise OtptError(f"The video {member.name!r} of {str(videos)!r} cannot be used: {error}") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        frame.save(temporary, "JPEG", quality=_QUALITY)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def middle_frame(data: bytes) -> Image.Image:
    """Return frame ⌊n/2⌋ of a video file with n frames.

    Raises:
        OtptError: if the package PyAV is missing, or the video cannot be decoded.
    """
    try:
        av = importlib.import_module("av")
    except ImportError:
        raise OtptError("videos need the package PyAV; pip install 'otpt[video]'.") from None
    try:
        with av.open(io.BytesIO(data)) as container:
            frames = list(container.decode(video=0))
        image: Image.Image = frames[len(frames) // 2].to_image()
    except Exception as error:  # PyAV has many
        raise OtptError(f"it cannot be decoded ({describe_error(error)}).") from None
    return image


def _letters(name: str) -> str:
    return name.replace("_", "").lower()


PREPARATIONS: Mapping[str, Callable[[Mapping[str, Path], Path, bool], int]] = {"imagenet": _prepare_files}
"""Step of a download, by its name in ``downloads.toml``: a function of the files by name, the data root and whether to
show progress."""
