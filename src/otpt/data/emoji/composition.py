"""One drawing → one image: background, scale, rotation and position drawn from a key.

All numbers come from ``random.Random(sha256(key))``, whose ``random()`` Python guarantees to stay the same, and
the whole image is one SVG, so it depends only on the key, the drawing and the rasteriser.
"""

from __future__ import annotations

import colorsys
import hashlib
import random

from .drawings import UNITS

SIDE = 128  # pixels of an image's side
_BACKGROUNDS = ("white", "plain", "gradient", "stripes", "dots")


def keyed_random(*key: object) -> random.Random:
    """A separate generator for each key, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))


def compose(body: str, rng: random.Random) -> str:
    """The drawing at 70 to 100 % of the side, rotated by up to 15°, on a light background."""
    return _background(rng) + _placed(body, rng, scale=_between(rng, 0.70, 1.0))


def compose_small(body: str, rng: random.Random) -> str:
    """The drawing at 35 to 50 % of the side, at a random position on a background of the same kinds."""
    return _background(rng) + _placed(body, rng, scale=_between(rng, 0.35, 0.50))


def _placed(body: str, rng: random.Random, scale: float) -> str:
    turn = _between(rng, -15.0, 15.0)
    room = (1.0 - scale) / 2 * SIDE  # how far the middle may move with the drawing's box still inside
    x, y = (SIDE / 2 + _between(rng, -room, room) for _ in "xy")
    half = UNITS / 2
    return (
        f'<g transform="translate({x:.3f} {y:.3f}) rotate({turn:.3f}) scale({scale * SIDE / UNITS:.5f}) '
        f'translate({-half} {-half})">{body}</g>'
    )


def _background(rng: random.Random) -> str:
    """White, one light colour, a gradient of two, or stripes or dots of two, equally often."""
    kind = _BACKGROUNDS[int(len(_BACKGROUNDS) * rng.random())]
    first, second = (_colour(rng, lightness=(0.72, 0.97), saturation=(0.0, 0.6)) for _ in range(2))
    turn = _between(rng, 0.0, 180.0)
    period = _between(rng, 8.0, 24.0)
    if kind == "white":
        return ""
    if kind == "plain":
        return _everywhere(first)
    if kind == "gradient":
        return (
            f'<linearGradient id="bg" gradientUnits="userSpaceOnUse" x1="0" y1="0" x2="{SIDE}" y2="{SIDE}" '
            f'gradientTransform="rotate({turn:.3f} {SIDE / 2} {SIDE / 2})">'
            f'<stop offset="0" stop-color="{first}"/><stop offset="1" stop-color="{second}"/>'
            f"</linearGradient>" + _everywhere("url(#bg)")
        )
    if kind == "stripes":
        mark = f'<rect width="{period / 2:.3f}" height="{period:.3f}" fill="{second}"/>'
    else:
        mark = f'<circle cx="{period / 2:.3f}" cy="{period / 2:.3f}" r="{period / 4:.3f}" fill="{second}"/>'
    return (
        f'<pattern id="bg" patternUnits="userSpaceOnUse" width="{period:.3f}" height="{period:.3f}" '
        f'patternTransform="rotate({turn:.3f})">{mark}</pattern>' + _everywhere(first) + _everywhere("url(#bg)")
    )


def _everywhere(fill: str) -> str:
    return f'<rect width="{SIDE}" height="{SIDE}" fill="{fill}"/>'


def _colour(rng: random.Random, *, lightness: tuple[float, float], saturation: tuple[float, float]) -> str:
    hue, light, pure = rng.random(), _between(rng, *lightness), _between(rng, *saturation)
    red, green, blue = colorsys.hls_to_rgb(hue, light, pure)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _between(rng: random.Random, low: float, high: float) -> float:
    return low + (high - low) * rng.random()
