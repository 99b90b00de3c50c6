"""Images by address, from hosts that the operator allowed, and never from a private network.

The address is resolved once, every address that the name has must be public, and the connection goes to the address
that was checked: a name that answers differently the second time gains nothing. Redirects are not followed.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from otpt.errors import OtptError
from otpt.images import UrlLimits, fetch_url
from otpt.serve.http.errors import RequestError

_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


def fetch(url: str, hosts: Collection[str], *, max_bytes: int, seconds: float) -> bytes:
    """The bytes at an http(s) address of an allowed host; ``RequestError`` otherwise."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise _refused(url, "it is no valid address") from None
    if not hosts:
        raise _refused(url, "addresses are not fetched here", "Send the image itself, in base64 or as a file part.")
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


def _refused(url: str, reason: str, do: str = "Send the image itself, or an address that is allowed.") -> RequestError:
    return RequestError(
        422,
        "address-refused",
        f"The image {url[:200]!r} is not fetched: {reason}.",
        "an address on a host that the operator allowed, or the image itself",
        do,
    )
