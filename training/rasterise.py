"""Every artist's drawing → 96 × 96 RGBA bytes, once, in one file."""

from __future__ import annotations

import io
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import resvg_py
from PIL import Image

from .artists import Drawing, read_drawings

SIDE = 96


@dataclass(frozen=True)
class Drawings:
    """All drawings, one row each."""

    pixels: npt.NDArray[np.uint8]  # (N, 4, SIDE, SIDE), RGB multiplied by alpha
    codes: npt.NDArray[np.str_]  # (N,)
    artists: npt.NDArray[np.str_]  # (N,)


def rasterise(drawing: Drawing) -> npt.NDArray[np.uint8] | None:
    """(4, SIDE, SIDE), or None if the drawing cannot be read or is empty."""
    data = drawing.data
    if isinstance(data, str):
        sized = data.replace("<svg ", f'<svg width="{SIDE}" height="{SIDE}" ', 1)
        try:
            data = bytes(resvg_py.svg_to_bytes(svg_string=sized, skip_system_fonts=True))
        except ValueError:
            return None
    with Image.open(io.BytesIO(data)) as image:
        rgba = image.convert("RGBA").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    values = np.array(rgba.convert("RGBa"), dtype=np.uint8)  # RGBa: multiplied by alpha
    return values.transpose(2, 0, 1) if values[..., 3].any() else None


def rasterise_all(packages: Path, target: Path, workers: int = 2) -> None:
    """Writes ``target`` (skipped when there)."""
    if target.exists():
        return
    drawings = list(read_drawings(packages))
    with ProcessPoolExecutor(workers) as pool:
        pixels = list(pool.map(rasterise, drawings, chunksize=64))
    kept = [(drawing, values) for drawing, values in zip(drawings, pixels, strict=True) if values is not None]
    partial = target.with_suffix(".partial.npz")
    np.savez(
        partial,
        pixels=np.stack([values for _, values in kept]),
        codes=np.array([drawing.code for drawing, _ in kept]),
        artists=np.array([drawing.artist for drawing, _ in kept]),
    )
    partial.rename(target)
    print(f"{len(kept)} drawings of {len(drawings)} rasterised, {len({d.code for d, _ in kept})} emoji")


def load_drawings(file: Path) -> Drawings:
    with np.load(file) as arrays:
        return Drawings(arrays["pixels"], arrays["codes"], arrays["artists"])
