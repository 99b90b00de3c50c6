"""Images of requests: in base64, or by address from allowed hosts and never from a private network; thumbnails.

An address is resolved once, all addresses of the name must be public, and the connection goes to the address that was
checked: a name that answers differently the second time gains nothing. Redirects are not followed.
"""

from __future__ import annotations

import base64
import binascii
import io
import ipaddress
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from otpt.errors import OtptError
from otpt.features.pipeline import EncodedImage
from otpt.images import UrlLimits, fetch_url, header_size
from otpt.methods import Predictor
from otpt.objectives import select_fraction, view_entropies
from otpt.serve.errors import RequestError
from otpt.transfers import to_host
from otpt.views import make_views
from otpt.views.recipe import Preprocessing

_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
_THUMBNAIL = 64  # pixels of a side
_FRACTION = 0.1  # of the views that TPT and its successors select: 6 of 64


@dataclass(frozen=True)
class ImageFile:
    """The bytes of an image file, and the number of pixels that its header says."""

    data: bytes
    pixels: int


def read_header(data: bytes, max_pixels: int) -> ImageFile:
    """Read the size of an image without decoding it; ``OtptError`` above the limit."""
    width, height = header_size(data)
    if width * height > max_pixels:
        raise OtptError(f"The image has {width}×{height} = {width * height:,} pixels; expected at most {max_pixels:,}.")
    return ImageFile(data, width * height)


def decode_base64(text: str) -> bytes:
    """The file that a text holds in base64, or as a data URL."""
    data = text
    if text[:5].lower() == "data:":
        head, _, data = text.partition(",")
        if not head.lower().endswith(";base64"):
            message = "An image is a data URL without base64."
            raise RequestError(400, "not-base64", message, given=head[:60], expected="data:image/…;base64,…")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        message = "An image is a text that is not base64; paths are not read here."
        expected = "the bytes of an image file in base64"
        raise RequestError(400, "not-base64", message, given=text[:40], expected=expected) from None


def fetch(url: str, hosts: Collection[str], *, max_bytes: int, seconds: float) -> bytes:
    """The bytes at an http(s) address of an allowed host; ``RequestError`` otherwise."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise _refused(url, "it is no valid address") from None
    if not hosts:
        raise _refused(url, "addresses are not fetched here")
    if host.lower() not in {each.lower().rstrip(".") for each in hosts}:
        raise _refused(url, f"the host {host!r} is not allowed")
    if parts.username is not None or parts.password is not None:
        raise _refused(url, "it holds a name or password")
    address = public_address(url, host, port)
    try:
        return fetch_url(url, UrlLimits(max_bytes, seconds, redirects=0), address=address)
    except OtptError as error:
        raise _refused(url, str(error).rstrip(".")) from None


def public_address(url: str, host: str, port: int) -> str:
    """The numerical address of a host, all of whose addresses are public."""
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise _refused(url, f"the host {host!r} has no address") from None
    for each in found:
        if not is_public(each):
            raise _refused(url, f"the host {host!r} has the private address {each}")
    return min(found)


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet: not loopback, private, link-local, multicast or reserved."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return is_public(str(parsed.ipv4_mapped))
        if parsed.sixtofour is not None or parsed.teredo is not None or parsed in _TRANSLATED:
            return False  # an IPv4 address in disguise, behind a tunnel or a translator
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved


def _refused(url: str, reason: str) -> RequestError:
    return RequestError(
        422,
        "address-refused",
        f"An image is not fetched by its address: {reason}.",
        given=url[:200],
        hint="Send the image itself, in base64 or as a file part.",
    )


def view_thumbnails(predictor: Predictor, image: EncodedImage, preprocessing: Preprocessing) -> Mapping[str, Any]:
    """All views as data URLs, the clean one first; the entropies of their zero-shot predictions; those selected."""
    recipe = max(predictor.recipes, key=lambda each: each.n_views)
    logits = predictor.view_logits(image)
    opened, digest = image.open()
    name = digest if image.task.image_id is None else image.task.image_id
    pixels = make_views(opened, recipe, preprocessing, seed=image.task.seed, image_id=name)
    shown = [_data_url(each, preprocessing) for each in pixels]
    if logits is None:
        return {"images": shown, "entropies": None, "selected": []}
    (logits,) = to_host([logits])
    entropies, selected = view_entropies(logits).tolist(), select_fraction(logits, _FRACTION).tolist()
    return {"images": shown, "entropies": entropies, "selected": selected}


def _data_url(view: Any, preprocessing: Preprocessing) -> str:
    """A normalised view (3, S, S) as a small JPEG."""
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (preprocessing.mean, preprocessing.std))
    bytes_ = np.clip((view * std + mean) * 255 + 0.5, 0, 255).astype(np.uint8).transpose(1, 2, 0)
    file = io.BytesIO()
    small = Image.fromarray(bytes_).resize((_THUMBNAIL, _THUMBNAIL), Image.Resampling.BILINEAR)
    small.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
