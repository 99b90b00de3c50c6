"""Images in any form are opened rightly; everything else is refused in one sentence."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from otpt.data import load_dataset, photograph
from otpt.errors import OtptError
from otpt.images import is_colourful, open_image, open_with_digest


def _pixels(width: int = 37, height: int = 23, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def _encoded(image: Image.Image, form: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def _refusal(source, **options) -> str:
    with pytest.raises(OtptError) as caught:
        open_image(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert caught.value.__cause__ is None
    return message


def _same(image: Image.Image, expected: np.ndarray) -> None:
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_exif_orientation_is_applied(form, orientation):
    image = Image.fromarray(_pixels())
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = _encoded(image, form, exif=exif)
    opened = Image.open(io.BytesIO(data))
    as_stored = np.asarray(opened.convert("RGB"))  # as the official scripts read it
    np.testing.assert_array_equal(np.asarray(open_image(data, upright=False)), as_stored)
    expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    image = open_image(data)
    _same(image, expected)
    _same(open_image(opened), expected)
    _same(open_image(image), expected)  # once only


def test_damaged_or_odd_metadata_is_harmless():
    image = Image.fromarray(_pixels())
    for exif in (b"Exif\x00\x00garbage", b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff\xff" + b"\x12\x01" * 30):
        data = _encoded(image, "JPEG", exif=exif)
        image = open_image(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        _same(image, expected)
    exif = Image.Exif()
    exif[0x0112] = 77
    assert open_image(_encoded(image, "JPEG", exif=exif)).size == image.size


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGBA", "CMYK", "YCbCr", "HSV", "P", "RGBa", "La", "RGBX"])
def test_colour_modes_as_pillow_converts_them(mode):
    rgb = Image.fromarray(_pixels())
    if mode in ("RGBa", "La"):
        straight = rgb.convert("RGBA" if mode == "RGBa" else "LA")
        straight.putalpha(128)
        image = straight.convert(mode)
        expected = image.convert(straight.mode).convert("RGB")
    else:
        image = rgb.convert(mode)
        if mode in ("LA", "RGBA"):
            image.putalpha(Image.fromarray(_pixels(seed=1)[..., 0]))
        expected = image.convert("RGB")
    before = image.tobytes()
    _same(open_image(image), np.asarray(expected))
    assert image.tobytes() == before
    assert image.mode == mode


def test_cmyk_jpeg_and_palette_with_transparency():
    cmyk = _encoded(Image.fromarray(_pixels()).convert("CMYK"), "JPEG", quality=95)
    _same(open_image(cmyk), np.asarray(Image.open(io.BytesIO(cmyk)).convert("RGB")))
    palette = Image.fromarray(_pixels()).quantize(16)
    data = _encoded(palette, "PNG", transparency=bytes(range(0, 256, 16)))
    _same(open_image(data), np.asarray(palette.convert("RGB")))  # Pillow itself would warn here
    single = _encoded(palette, "PNG", transparency=3)
    _same(open_image(single), np.asarray(palette.convert("RGB")))


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(form):
    values = np.linspace(0, 65535, 37 * 23).astype(np.uint16).reshape(23, 37)
    grey = np.rint(values / 257).astype(np.uint8)
    image = Image.fromarray(values)
    expected = np.repeat(grey[..., None], 3, axis=2)
    _same(open_image(_encoded(image, form)), expected)
    _same(open_image(image), expected)
    _same(open_image(Image.fromarray(values.astype(np.int32))), expected)
    _same(open_image(Image.fromarray(values.astype(">u2"))), expected)


def test_values_without_a_white():
    assert "32-bit values" in _refusal(Image.fromarray(np.array([[0, 70_000]], np.int32)))
    assert "floating-point" in _refusal(Image.fromarray(np.ones((4, 4), np.float32)))


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame(form):
    frames = [Image.new("RGB", (20, 10), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options = {"lossless": True} if form == "WEBP" else {}
    data = _encoded(frames[0], form, save_all=True, append_images=frames[1:], duration=50, **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3
    _same(open_image(data), np.asarray(frames[0]))


def test_missing_folder_empty_and_not_an_image(tmp_path: Path):
    assert "no image at" in _refusal(tmp_path / "nothing.jpg")
    assert "is a folder" in _refusal(tmp_path)
    empty = tmp_path / "empty.jpg"
    empty.touch()
    assert "empty (0 bytes)" in _refusal(empty)
    assert "empty (0 bytes)" in _refusal(b"")
    text = tmp_path / "notes.jpg"
    text.write_text("not an image\n")
    assert "not an image" in _refusal(text)
    assert str(text) in _refusal(text)
    assert "not an image" in _refusal(bytes(range(256)))
    assert "Cannot read" in _refusal("a\0b.jpg")
    assert "Cannot read" in _refusal("x" * 5000)
    assert "regular file" in _refusal(os.devnull)
    assert "Cannot open a int" in _refusal(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_truncated_files_are_refused(form, kept):
    data = _encoded(Image.fromarray(_pixels(200, 150)), form)
    message = _refusal(data[: int(len(data) * kept)])
    assert "corrupt or truncated" in message or "not an image" in message


def _png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def test_enormous_images_are_refused_before_decoding():
    assert "3600000000 pixels" in _refusal(_png_header(60_000, 60_000))
    # Between Pillow's warning and its error: ours to judge, without a warning.
    assert "11000×10000 = 110,000,000 pixels; expected at most 100,000,000" in _refusal(
        _png_header(11_000, 10_000), max_pixels=10**8
    )
    assert "truncated" in _refusal(_png_header(11_000, 10_000))
    message = _refusal(Image.new("RGB", (100, 100)), max_pixels=9_999)
    assert "100×100" in message
    assert "9,999" in message
    assert open_image(Image.new("RGB", (100, 100)), max_pixels=10_000).size == (100, 100)


def test_images_without_pixels():
    assert "no pixels (0×5)" in _refusal(Image.new("RGB", (0, 5)))
    assert "(0, 3, 3)" in _refusal(np.zeros((0, 3, 3), np.uint8))


def test_a_closed_pil_image_is_refused(tmp_path: Path):
    path = tmp_path / "a.png"
    Image.fromarray(_pixels()).save(path)
    image = Image.open(path)
    image.close()
    assert "Cannot use the given image" in _refusal(image)


def test_same_pixels_same_digest_in_every_form(tmp_path: Path):
    pixels = _pixels()
    image = Image.fromarray(pixels)
    expected = hashlib.sha256(b"37 23\n" + pixels.tobytes()).hexdigest()[:32]
    for form in ("PNG", "BMP", "TIFF", "WEBP"):
        data = _encoded(image, form, **({"lossless": True} if form == "WEBP" else {}))
        path = tmp_path / f"image.{form.lower()}"
        path.write_bytes(data)
        for source in (path, str(path), data, data + b" ", io.BytesIO(data), Image.open(path)):
            assert open_with_digest(source)[1] == expected
    for source in (image, pixels, torch.from_numpy(pixels).permute(2, 0, 1), pixels / 255):
        assert open_with_digest(source)[1] == expected
    assert open_with_digest(pixels.reshape(37, 23, 3))[1] != expected  # same bytes, another shape
    with pytest.raises(OtptError, match="no image at"):
        open_with_digest(tmp_path / "c.png")


PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
GREY = PIXELS[..., 0]
AS_RGB = np.repeat(GREY[..., None], 3, axis=2)


def same(source: Any, expected: np.ndarray = PIXELS) -> None:
    np.testing.assert_array_equal(np.asarray(open_image(source)), expected)


def test_arrays_with_channels_last_or_first_grey_and_with_alpha() -> None:
    alpha = np.dstack([PIXELS, np.full((5, 7), 3, np.uint8)])
    for array, expected in ((PIXELS, PIXELS), (alpha, PIXELS), (GREY[..., None], AS_RGB)):
        same(array, expected)
        same(np.moveaxis(array, 2, 0), expected)
    same(GREY, AS_RGB)
    same(PIXELS[:, ::-1], PIXELS[:, ::-1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_give_back_the_bytes_that_were_divided_by_255(dtype: type) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    same((every / 255).astype(dtype), np.repeat(every[..., None], 3, axis=2))
    same((PIXELS / 255).astype(dtype))


def test_tensors_as_torchvision_makes_them() -> None:
    from torchvision.transforms.functional import pil_to_tensor, to_tensor

    image = Image.fromarray(PIXELS)
    for tensor in (pil_to_tensor(image), to_tensor(image), to_tensor(image).requires_grad_(), to_tensor(image)[None]):
        same(tensor)
    same(to_tensor(image).permute(1, 2, 0))
    same(pil_to_tensor(image)[0], AS_RGB)
    same(pil_to_tensor(image)[:1], AS_RGB)


def test_a_shape_that_could_be_either_follows_the_custom_of_its_kind() -> None:
    values = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    same(values, values)
    same(torch.from_numpy(values), np.moveaxis(values, 0, 2))


def test_sixteen_bits_are_scaled() -> None:
    same(GREY.astype(np.uint16) * 257, AS_RGB)


def test_what_cannot_be_an_image_is_refused() -> None:
    floats = PIXELS / 255
    holed = np.where(np.arange(3) == 1, np.nan, floats)
    for broken in (holed, np.full((4, 4, 3), np.inf), torch.full((3, 4, 4), torch.nan)):
        assert "nan or infinite" in _refusal(broken)
        assert "divide" not in _refusal(broken)
    assert "undo its normalisation" in _refusal(floats - 0.5)
    assert "values range from 0 to 255, expected floats in [0, 1]; divide it by 255" in _refusal(
        torch.tensor([[[0.0, 255.0]]])
    )
    for wrong in (np.zeros((6, 8, 5), np.uint8), np.zeros((6, 5, 2), np.uint8), np.zeros(4), PIXELS.astype(int)):
        assert "expected (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels" in _refusal(wrong)
    assert "(B, C, H, W)" in _refusal(torch.zeros(2, 3, 4, 4))
    assert "a tensor of shape (3, 0, 4) and type torch.float32" in _refusal(torch.zeros(3, 0, 4))
    same(floats * (1 + 1e-9))


def test_photographs_have_more_colours_than_drawings() -> None:
    assert all(is_colourful(open_image(photograph(name))) for name in ("cat", "coffee", "rocket"))
    pytest.importorskip("resvg_py")
    drawings = load_dataset("emoji/food")
    assert not any(is_colourful(open_image(drawings[index].source)) for index in range(0, 120, 12))
