"""Images by address, from hosts that the operator allowed, and never from a private network.

The address is resolved once, every address that the name has must be public, and the connection goes to the address
that was checked: a name that answers differently the second time gains nothing. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Collection
from urllib.parse import urlsplit

from otpt.images.urls import Deadline
from otpt.serve.http.errors import RequestError

_CHUNK = 1 << 16
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
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with Deadline(seconds) as deadline:
        connection = _Connection(host, port, address, tls=parts.scheme.lower() == "https", deadline=deadline)
        try:
            connection.request("GET", target, headers={"Accept": "image/*", "Connection": "close"})
            with connection.getresponse() as response:
                if response.status != 200:
                    raise _refused(url, f"the server answered {response.status}; redirects are not followed")
                return _read(response, url, max_bytes, deadline)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError) or deadline.is_over:
                raise _refused(url, f"it took more than {seconds:.3g} s") from None
            raise _refused(url, f"it cannot be fetched ({type(error).__name__})") from None
        finally:
            connection.close()


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


class _Connection(http.client.HTTPConnection):
    """To one checked address; the name serves the Host header and the certificate."""

    def __init__(self, host: str, port: int, address: str, *, tls: bool, deadline: Deadline) -> None:
        super().__init__(host, port)
        self._address, self._tls, self._deadline = address, tls, deadline

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self._deadline.left)
        if self._tls:
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        self._deadline.watch(self.sock)
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.do_handshake()


def _read(response: http.client.HTTPResponse, url: str, max_bytes: int, deadline: Deadline) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise _refused(url, f"it has more than {max_bytes:,} bytes")
    if deadline.is_over:  # the end of the connection may be ours, not that of the file
        raise TimeoutError
    if response.length:
        raise _refused(url, f"the connection ended after {size:,} of {size + response.length:,} bytes")
    return b"".join(parts)


def _refused(url: str, reason: str, do: str = "Send the image itself, or an address that is allowed.") -> RequestError:
    return RequestError(
        422,
        "address-refused",
        f"The image {url[:200]!r} is not fetched: {reason}.",
        "an address on a host that the operator allowed, or the image itself",
        do,
    )
