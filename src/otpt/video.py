"""Videos and sequences of images whose frames are the views of one prediction.

    clf.predict("clip.mp4")
    clf.predict(otpt.Frames("clip-frames/"))

A prediction with n views looks at n frames, at 1/2, 1/4, 3/4, 1/8, 3/8 … of the duration (the van der Corput sequence).
They are evenly spaced for n = 1, 3, 7, 15, 31, 63, and nearly so in between; the first one is the middle frame, and the
first n frames are the same for any larger n. A frame is resized and cropped like a clean view: crops, flips and AugMix
are not applied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from PIL import Image

from otpt.errors import OtptError, cannot_read, describe_error
from otpt.folders import images_below
from otpt.images import LIMITS, ImageSource, UrlLimits, is_url, open_image

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame

FORMATS = {
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".mov": "mov",
    ".mkv": "matroska",
    ".webm": "matroska",
    ".avi": "avi",
    ".mpg": "mpeg",
    ".mpeg": "mpeg",
}
"""FFmpeg's container format by file suffix; playlists, which name other files, are none of them."""
MAX_FRAMES = 20_000
"""Longest video: eleven minutes at 30 frames per second, all of which are decoded."""
MAX_PIXELS = 7680 * 4320
"""Largest frame."""


class Frames:
    """Frames of a video file, or images of one scene, as the views of a single prediction.

    Args:
        source: video file, folder of images in the order of their names, or a list of images.

    Attributes:
        source: the file or folder, or the images.

    Example:
        >>> scene = Frames([Image.new("RGB", (32, 32), colour) for colour in ("red", "green", "blue")])
        >>> scene
        Frames(3 images)
        >>> scene.still().getpixel((0, 0))
        (0, 128, 0)
    """

    def __init__(self, source: str | os.PathLike[str] | Sequence[ImageSource]) -> None:
        self.source: str | tuple[ImageSource, ...]
        if isinstance(source, (str, os.PathLike)):
            path = os.path.expanduser(os.fspath(source))
            if is_url(path):
                raise OtptError(f"Videos are read from files, but {path!r} is an address; download it first.")
            if not os.path.isdir(path) and not is_video(path):
                raise OtptError(f"{path!r} is neither a folder nor a video ({', '.join(FORMATS)}).")
            self.source = path
        elif isinstance(source, (list, tuple)) and source:
            self.source = tuple(source)
        else:
            raise OtptError(f"The frames are {source!r:.80}; expected a video file, a folder or a list of images.")

    def __repr__(self) -> str:
        return f"Frames({self.source!r})" if isinstance(self.source, str) else f"Frames({self.name})"

    def __eq__(self, other: object) -> bool:
        return self.source == other.source if isinstance(other, Frames) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.source if isinstance(self.source, str) else len(self.source))

    @property
    def name(self) -> str:
        """Name in results."""
        return self.source if isinstance(self.source, str) else f"{len(self.source)} images"

    def at(self, fractions: Sequence[float], urls: UrlLimits | None = LIMITS) -> Iterator[tuple[int, Image.Image]]:
        """Yield (index of the fraction, RGB frame) at fractions of the duration; those of an early frame come first."""
        order = sorted(range(len(fractions)), key=fractions.__getitem__)
        rising = [fractions[i] for i in order]
        frames = _of_video(self.source, rising) if is_video(self.source) else self._of_images(rising, urls)
        yield from zip(order, frames, strict=True)

    def still(self, urls: UrlLimits | None = LIMITS) -> Image.Image:
        """Return the middle frame."""
        ((_, frame),) = self.at([0.5], urls)
        return frame

    def _of_images(self, fractions: Sequence[float], urls: UrlLimits | None) -> Iterator[Image.Image]:
        images: Sequence[ImageSource]
        if isinstance(self.source, str):
            try:
                images = [os.path.join(self.source, name) for name in images_below(self.source)]
            except OSError as error:
                raise cannot_read("folder of frames", self.source, error) from None
            if not images:
                raise OtptError(f"The folder {self.source!r} holds no images; expected the frames of one scene.")
        else:
            images = self.source
        last, frame = -1, None
        for fraction in fractions:
            index = int(fraction * len(images))
            if frame is None or index != last:
                last, frame = index, open_image(images[index], urls=urls)
            yield frame


def is_video(source: object) -> TypeGuard[str]:
    """Return whether a path has the suffix of a video."""
    return isinstance(source, (str, os.PathLike)) and Path(os.fspath(source)).suffix.lower() in FORMATS


def as_frames(source: object) -> Frames | None:
    """Return the frames of a video file, or None for an image."""
    if isinstance(source, Frames):
        return source
    return Frames(source) if is_video(source) else None


def open_still(source: object, urls: UrlLimits | None = LIMITS, *, upright: bool = True) -> Image.Image:
    """Open an image, or the middle frame of a video."""
    frames = as_frames(source)
    return open_image(source, urls=urls, upright=upright) if frames is None else frames.still(urls)  # type: ignore[arg-type]


def frame_fractions(count: int) -> list[float]:
    """Return where ``count`` frames lie: 1/2, 1/4, 3/4, 1/8, 5/8, 3/8, 7/8 …

    >>> frame_fractions(7)
    [0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875]
    """
    fractions = []
    for number in range(1, count + 1):
        digits = f"{number:b}"
        fractions.append(int(digits[::-1], 2) / 2 ** len(digits))
    return fractions


def _of_video(path: str, fractions: Sequence[float]) -> Iterator[Image.Image]:
    """Yield the first frame at or after each fraction of the duration, in rising order."""
    try:
        import av
    except ImportError:
        raise OtptError(f"The video {path!r} needs PyAV: pip install 'otpt[video]'.") from None
    if not os.path.isfile(path):
        raise OtptError(f"There is no video at {path!r}; check the path.")
    try:
        with open(path, "rb") as file:  # not the name, so that no other file can be opened
            kind = FORMATS[Path(path).suffix.lower()]
            with av.open(file, "r", format=kind, metadata_errors="replace") as container:
                times = _frame_times(container, path)
            file.seek(0)
            with av.open(file, "r", format=kind, metadata_errors="replace") as container:
                yield from _frames_at(container, path, [times[0] + f * (times[-1] - times[0]) for f in fractions])
    except OSError as error:
        raise cannot_read("video", path, error) from None
    except (av.FFmpegError, ValueError, IndexError, MemoryError) as error:
        if isinstance(error, OtptError):
            raise
        raise OtptError(
            f"Cannot use {path!r} as a video: it is corrupt or truncated ({describe_error(error)})."
        ) from None


def _frame_times(container: InputContainer, path: str) -> list[int]:
    """Return the presentation times of all frames, rising, without decoding them."""
    if not container.streams.video:
        raise OtptError(f"{path!r} has no video stream; expected a video.")
    times: list[int] = []
    for packet in container.demux(container.streams.video[0]):
        if packet.pts is not None:
            times.append(packet.pts)
        if len(times) > MAX_FRAMES:
            raise OtptError(
                f"The video {path!r} has more than {MAX_FRAMES:,} frames; cut it, or take a folder of its frames."
            )
    if not times:
        raise OtptError(f"The video {path!r} has no frames; expected one at least.")
    return sorted(times)


def _frames_at(container: InputContainer, path: str, times: Sequence[float]) -> Iterator[Image.Image]:
    """Decode the video, and yield the first frame at or after each of the rising times; else the last one."""
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    waiting = list(times)
    frame = None
    for frame in container.decode(stream):
        if frame.width * frame.height > MAX_PIXELS:
            raise OtptError(f"Frames of {path!r} have {frame.width}×{frame.height} pixels; expected at most 7680×4320.")
        due = [time for time in waiting if frame.pts is not None and frame.pts >= time]
        if due:
            image = _upright(frame)
            yield from (image for _ in due)
            waiting = waiting[len(due) :]
        if not waiting:
            return
    if frame is None:
        raise OtptError(f"The video {path!r} has no frames that can be decoded.")
    image = _upright(frame)
    yield from (image for _ in waiting)


def _upright(frame: VideoFrame) -> Image.Image:
    """Convert a frame to an RGB image, turned as the video's metadata say."""
    image: Image.Image = frame.to_image()  # type: ignore[no-untyped-call]
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image
