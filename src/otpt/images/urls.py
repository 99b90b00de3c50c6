"""Images from the web: http and https, with limits on size, time and redirects."""

from __future__ import annotations

import time
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

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


def is_url(source: str) -> bool:
    """Whether a text is an http(s) address."""
    return source.lower().startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def fetch_url(url: str, limits: UrlLimits | None = LIMITS) -> bytes:
    """The bytes at an address; None for ``limits`` refuses it."""
    if limits is None:
        raise OtptError(f"Addresses are not accepted here, but {url!r} was given; give the image itself or its file.")
    deadline = time.monotonic() + limits.seconds
    opener, at = build_opener(_NoRedirect), url
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
            if isinstance(reason, TimeoutError):
                raise _too_slow(url, limits) from None
            raise _failed(url, str(getattr(reason, "strerror", None) or reason)) from None
    raise _failed(url, f"it redirects more than {limits.redirects} times")


def _failed(url: str, why: str) -> OtptError:
    return OtptError(f"Cannot fetch {url!r}: {why}; check the address, or download the image and give its path.")


class _NoRedirect(HTTPRedirectHandler):
    """Redirects come back as errors: their number, target and time are ours to check."""

    def redirect_request(self, *_: object) -> None:
        """None: do not follow."""


def _read(opener: OpenerDirector, at: str, url: str, limits: UrlLimits, deadline: float) -> bytes:
    request = Request(at, headers={"User-Agent": f"otpt/{__version__}", "Accept": "image/*, */*;q=0.5"})
    parts: list[bytes] = []
    size = 0
    with opener.open(request, timeout=max(deadline - time.monotonic(), 0.001)) as response:
        announced = response.headers.get("Content-Length", "")
        if announced.isdecimal() and int(announced) > limits.max_bytes:
            raise _too_large(url, limits)
        # what has arrived, not a full chunk: a server that sends a byte now and then must not outlast the deadline
        while part := response.read1(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > limits.max_bytes:
                raise _too_large(url, limits)
            if time.monotonic() > deadline:
                raise _too_slow(url, limits)
    if announced.isdecimal() and size < int(announced):
        raise _failed(url, f"the connection ended after {size:,} of {int(announced):,} bytes")
    return b"".join(parts)


def _too_large(url: str, limits: UrlLimits) -> OtptError:
    return OtptError(f"The file at {url!r} has more than {limits.max_bytes:,} bytes; download it and give its path.")


def _too_slow(url: str, limits: UrlLimits) -> OtptError:
    return OtptError(f"Cannot fetch {url!r} within {limits.seconds:g} s; try again, or download it and give its path.")
