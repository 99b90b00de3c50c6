"""Arrays and tensors of any usual form are images; others are refused in a sentence that says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from otpt.errors import OtptError
from otpt.images import open_image

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
GREY = PIXELS[..., 0]
AS_RGB = np.repeat(GREY[..., None], 3, axis=2)


def same(source: Any, expected: np.ndarray = PIXELS) -> None:
    np.testing.assert_array_equal(np.asarray(open_image(source)), expected)


def refusal(source: Any) -> str:
    with pytest.raises(OtptError) as caught:
        open_image(source)
    return str(caught.value)


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
    assert "nan" in refusal(holed)
    assert "undo its normalisation" in refusal(floats - 0.5)
    assert "values go from 0 to 255, expected floats in [0, 1]; divide it by 255" in refusal(
        torch.tensor([[[0.0, 255.0]]])
    )
    for wrong in (np.zeros((6, 8, 5), np.uint8), np.zeros((6, 5, 2), np.uint8), np.zeros(4), PIXELS.astype(int)):
        assert "expected (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels" in refusal(wrong)
    assert "predict_batch" in refusal(torch.zeros(2, 3, 4, 4))
    assert "a tensor of shape (3, 0, 4) and type torch.float32" in refusal(torch.zeros(3, 0, 4))
    same(floats * (1 + 1e-9))
