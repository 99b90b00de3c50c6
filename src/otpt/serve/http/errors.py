"""What a client is told: an HTTP status and JSON with what was given, what is expected and what to do."""

from __future__ import annotations

from typing import Any

from otpt.errors import OtptError

AGAIN = "Correct the request and send it again; GET /openapi.json describes it."


class RequestError(Exception):
    """A request that is not answered.

    Args:
        status: of HTTP.
        kind: a short name for programs, such as "too-many-labels".
        what: was given.
        expected: in its place.
        do: what the client can do.
        headers: such as Retry-After.
    """

    def __init__(
        self, status: int, kind: str, what: str, expected: str, do: str = AGAIN, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(what)
        self.status, self.kind, self.headers = status, kind, headers or {}
        self.what, self.expected, self.do = what, expected, do

    def content(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"type": self.kind, "what": self.what, "expected": self.expected, "do": self.do}}


def unusable(error: OtptError) -> RequestError:
    """An error of the library's as an answer: the request can be read, but not used."""
    what, expected, do = sentence_parts(str(error))
    return RequestError(422, "unusable", what, expected or "values that can be used together", do or AGAIN)


def sentence_parts(message: str) -> tuple[str, str, str]:
    """What was given, what is expected and what to do, as far as a message of the library's says them.

    >>> sentence_parts("Only one label was given; expected two at least; add one.")
    ('Only one label was given.', 'two at least', 'Add one.')
    >>> sentence_parts("Unknown list 'pet'. Did you mean: pets? Available: cars, pets.")
    ("Unknown list 'pet'.", 'one of: cars, pets', 'Did you mean: pets?')
    >>> sentence_parts("A coverage needs a calibration; name one.")
    ('A coverage needs a calibration.', '', 'Name one.')
    """
    head, found, names = message.partition(" Available")
    if found and message.startswith("Unknown "):
        what, near, rest = head.partition(" Did you mean: ")
        return what, f"one of{names}".rstrip("."), f"Did you mean: {rest.strip()}" if near else ""
    what, found, rest = message.partition("; expected ")
    if found:
        expected, _, do = rest.partition("; ")
    else:
        expected, (what, _, do) = "", message.partition("; ")
    return what.rstrip(".") + ".", expected.rstrip("."), do[:1].upper() + do[1:]


def unusable_image(error: OtptError) -> RequestError:
    """An image that cannot be read."""
    what, expected, _ = sentence_parts(str(error))
    do = "Give another image, or this one as PNG or JPEG."
    return RequestError(422, "image", what, expected or "an image that can be decoded, within the limits", do)


def busy(seconds: int, what: str) -> RequestError:
    """429: come back later."""
    return RequestError(
        429,
        "busy",
        what,
        "fewer requests at a time",
        f"Send the request again after {seconds} s.",
        {"Retry-After": str(seconds)},
    )


def closing() -> RequestError:
    """503: the service stops, and answers what it accepted before."""
    return RequestError(
        503,
        "closing",
        "The service is shutting down.",
        "a running service",
        "Send the request again in a few seconds, or to another replica.",
        {"Retry-After": "5"},
    )


def too_slow(seconds: float) -> RequestError:
    """503: accepted, but not answered in time."""
    return RequestError(
        503,
        "time-out",
        f"The request was not answered within {seconds:g} s.",
        "images, labels, views and methods that can be computed in that time",
        "Send fewer images or ask for fewer views or methods; or try again when the service is less busy.",
        {"Retry-After": "5"},
    )
