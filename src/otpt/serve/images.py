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
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from PIL import Image

from otpt.decoders import Decoders
from otpt.errors import OtptError
from otpt.images import UrlLimits, fetch_url
from otpt.serve.errors import RequestError

_URL = 2000  # characters
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class ImageFile:
    """Bytes of an image file and the number of pixels that its header declares."""

    data: bytes
    pixels: int

    @classmethod
    def read(cls, data: bytes, decoders: Decoders) -> ImageFile:
        """Read the header; ``OtptError`` for other formats, and above the limits."""
        width, height = decoders.size(data)
        return cls(data, width * height)


def decode_base64(text: str) -> bytes:
    """Decode base64 text or a data URL."""
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
    """Fetch an http(s) URL of an allowed host; ``RequestError`` otherwise."""
    if not hosts:
        raise _refused(url, "addresses are not fetched here")
    if len(url) > _URL:
        raise _refused(url, f"it has {len(url):,} characters, more than {_URL:,}")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise _refused(url, "it is no valid address") from None
    if host.lower() not in {allowed.lower().rstrip(".") for allowed in hosts}:
        raise _refused(url, f"the host {host!r} is not allowed")
    if parts.username is not None or parts.password is not None:
        raise _refused(url, "it holds a name or password")
    address = public_address(url, host, port)
    try:
        return fetch_url(url, UrlLimits(max_bytes, seconds, redirects=0), address=address)
    except OtptError as error:
        raise _refused(url, str(error).rstrip(".")) from None


def public_address(url: str, host: str, port: int) -> str:
    """Resolve a host, all of whose addresses must be public."""
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _refused(url, f"the host {host!r} has no address") from None
    addresses = {str(socket_address[0]) for *_, socket_address in answers}
    for address in addresses:
        if not is_public(address):
            raise _refused(url, f"the host {host!r} has the private address {address}")
    return min(addresses)


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
    message = f"An image is not fetched by its address: {reason}."
    hint = "Send the image itself, in base64 or as a file part."
    return RequestError(422, "address-refused", message, given=url[:200], hint=hint)


def data_url(image: Image.Image, form: str) -> str:
    """Encode an image, for instance as "PNG", in a data URL."""
    file = io.BytesIO()
    image.save(file, form)
    return f"data:image/{form.lower()};base64," + base64.b64encode(file.getvalue()).decode("ascii")
