"""Images from the web: http and https, with limits on size, time and redirects."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import TracebackType
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from otpt._version import __version__
from otpt.errors import OtptError

SCHEMES = ("http", "https")
_CHUNK = 1 << 16
_MOVED = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class UrlLimits:
    """What an address may cost: bytes of its file, seconds from the first request to the last byte, redirects."""

    max_bytes: int = 64 << 20
    seconds: float = 20.0
    redirects: int = 5


LIMITS = UrlLimits()


class Deadline:
    """Seconds for a whole exchange: when they are over, its connections are shut down.

    The timeout of a socket holds for each read alone: a server that sends a byte now and then would outlast it.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._hang_up)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._timer.cancel()

    @property
    def left(self) -> float:
        """Seconds; a moment where none are left, since a timeout of 0 means something else."""
        return max(self._end - time.monotonic(), 0.001)

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._end

    def watch(self, connection: socket.socket) -> None:
        """Shut this connection down, too, when the time is over."""
        self._sockets.append(connection)
        if self.is_over:
            self._hang_up()

    def _hang_up(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def is_url(source: str) -> bool:
    """Whether a text is an http(s) address."""
    return source.lower().startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def fetch_url(url: str, limits: UrlLimits | None = LIMITS) -> bytes:
    """The bytes at an address; None for ``limits`` refuses it."""
    if limits is None:
        raise OtptError(f"Addresses are not accepted here, but {url!r} was given; give the image itself or its file.")
    with Deadline(limits.seconds) as deadline:
        return _fetch(url, limits, deadline)


def _fetch(url: str, limits: UrlLimits, deadline: Deadline) -> bytes:
    opener, at = _opener(deadline), url
    for _ in range(limits.redirects + 1):
        try:
            return _read(opener, at, url, limits, deadline)
        except HTTPError as error:
            with error:
                target = error.headers.get("Location") if error.code in _MOVED else None
            if target is None:
                raise _failed(url, f"the server answered {error.code} ({error.reason})") from None
            at = urljoin(at, target)
            if urlsplit(at).scheme not in SCHEMES:
                raise _failed(url, f"it redirects to {at!r}, which is not http or https") from None
        except TimeoutError:
            raise _too_slow(url, limits) from None
        except (URLError, HTTPException, OSError, ValueError) as error:
            if isinstance(error, OtptError):
                raise
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError) or deadline.is_over:
                raise _too_slow(url, limits) from None
            raise _failed(url, str(getattr(reason, "strerror", None) or reason)) from None
    raise _failed(url, f"it redirects more than {limits.redirects} times")


def _failed(url: str, why: str) -> OtptError:
    return OtptError(f"Cannot fetch {url!r}: {why}; check the address, or download the image and give its path.")


class _NoRedirect(HTTPRedirectHandler):
    """Redirects come back as errors: their number, target and time are ours to check."""

    def redirect_request(self, *_: object) -> None:
        """None: do not follow."""


def _opener(deadline: Deadline) -> OpenerDirector:
    """Of connections that end with the deadline."""

    class Http(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            deadline.watch(self.sock)

    class Https(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            deadline.watch(self.sock)

    class HttpHandler(HTTPHandler):
        def http_open(self, req: Request) -> HTTPResponse:
            return self.do_open(Http, req)

    class HttpsHandler(HTTPSHandler):
        def https_open(self, req: Request) -> HTTPResponse:
            return self.do_open(Https, req)

    return build_opener(_NoRedirect, HttpHandler, HttpsHandler)


def _read(opener: OpenerDirector, at: str, url: str, limits: UrlLimits, deadline: Deadline) -> bytes:
    request = Request(at, headers={"User-Agent": f"otpt/{__version__}", "Accept": "image/*, */*;q=0.5"})
    parts: list[bytes] = []
    size = 0
    with opener.open(request, timeout=deadline.left) as response:
        announced = response.headers.get("Content-Length", "")
        if announced.isdecimal() and int(announced) > limits.max_bytes:
            raise _too_large(url, limits)
        while part := response.read1(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > limits.max_bytes:
                raise _too_large(url, limits)
    if deadline.is_over:  # the end of the connection may be ours, not that of the file
        raise _too_slow(url, limits)
    if announced.isdecimal() and size < int(announced):
        raise _failed(url, f"the connection ended after {size:,} of {int(announced):,} bytes")
    return b"".join(parts)


def _too_large(url: str, limits: UrlLimits) -> OtptError:
    return OtptError(f"The file at {url!r} has more than {limits.max_bytes:,} bytes; download it and give its path.")


def _too_slow(url: str, limits: UrlLimits) -> OtptError:
    return OtptError(f"Cannot fetch {url!r} within {limits.seconds:g} s; try again, or download it and give its path.")
