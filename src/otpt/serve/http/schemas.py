"""Requests and answers of the HTTP interface, as pydantic describes them in ``/openapi.json``."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A PNG of one red pixel, for examples."""

Text = Annotated[str, Field(min_length=1)]


class Asked(BaseModel):
    """What requests of ``/v1/predict`` and ``/v1/compare`` have in common."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    image: str | None = Field(default=None, description="one image: its file in base64, or a data URL")
    images: list[str] | None = Field(default=None, min_length=1, description="several images, in place of one")
    labels: list[str] | None = Field(default=None, description="class names, two at least")
    classes: str | None = Field(default=None, description="name of a class list (GET /v1/classes), in place of labels")
    model: str | None = Field(default=None, description="one of GET /v1/models; the first by default")
    template: str | None = Field(default=None, description="words around a class name: 'a photo of a {}.'")
    templates: list[str] | None = Field(default=None, description="sentences with {}, whose text features are averaged")
    top: int = Field(default=5, ge=1, description="classes to show")
    calibration: str | list[str] | None = Field(default=None, description="names of calibration files, one per method")
    coverage: float | None = Field(
        default=None, gt=0, lt=1, description="of the prediction set, such as 0.9; needs a calibration"
    )
    risk: float | None = Field(
        default=None, gt=0, lt=1, description="abstain to hold this risk, such as 0.05; needs a calibration"
    )
    reject: bool | str | None = Field(
        default=None, description="mark images that fit no label; true, or the name of a score"
    )
    seed: int | None = Field(default=None, ge=0, lt=1 << 63, description="of the views; the service's by default")
    views: int | None = Field(default=None, ge=1, description="per image, the clean one included; 64 by default")


class PredictRequest(Asked):
    """``POST /v1/predict``."""

    method: str | None = Field(default=None, description="name of a method (GET /v1/methods)")
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"image": PIXEL, "labels": ["cat", "dog", "red panda"], "method": "zero-shot", "views": 1}]
        }
    )


class CompareRequest(Asked):
    """``POST /v1/compare``: several methods on the same views."""

    methods: list[str] = Field(min_length=1, description="names of methods")
    show_views: bool = Field(default=False, description="answer with the views of each image, too")
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"image": PIXEL, "labels": ["cat", "dog"], "methods": ["zero-shot", "o-tpt"], "views": 8}]
        }
    )


class HubParameters(BaseModel):
    """Of a request in the shape of Hugging Face's zero-shot image classification."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    candidate_labels: list[str] | str = Field(description="class names, or a text with commas")
    hypothesis_template: str | None = Field(default=None, description="'This is a photo of {}.'")
    method: str | None = Field(default=None, description="our own: name of a method")


class HubImage(BaseModel):
    """The image as the JavaScript client may send it."""

    image: str


class HubRequest(BaseModel):
    """``POST /models/{model}``: what Hugging Face's clients send."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"inputs": PIXEL, "parameters": {"candidate_labels": ["cat", "dog"]}}]},
    )

    inputs: str | HubImage = Field(description="an image in base64")
    parameters: HubParameters = Field(description="an object with candidate_labels")


class Scored(BaseModel):
    """A label with its probability."""

    label: str
    score: float


class ErrorContent(BaseModel):
    """Why there is no answer."""

    type: str
    what: str
    expected: str
    do: str


class ErrorAnswer(BaseModel):
    """The body of every answer that is not 2xx."""

    error: ErrorContent


class Result(BaseModel):
    """What a method says of an image."""

    label: str
    confidence: float
    index: int
    top: list[Scored]
    set: list[str] | None = Field(description="the prediction set, where a coverage was asked for")
    abstained: bool | None = Field(description="where a risk was asked for")
    unknown: bool | None = Field(description="whether it fits no label, where reject was asked for")
    flags: list[str]
    extras: dict[str, float | None]


class Compared(BaseModel):
    """What several methods say of an image."""

    methods: dict[str, Result]
    views: dict[str, Any] | None = None


class PredictAnswer(BaseModel):
    """Answer of ``/v1/predict``: a result, or an error, for each image."""

    model: str
    method: str
    labels: list[str]
    results: list[Result | ErrorAnswer]
    seconds: dict[str, float]


class CompareAnswer(BaseModel):
    """Answer of ``/v1/compare``."""

    model: str
    labels: list[str]
    results: list[Compared | ErrorAnswer]
    seconds: dict[str, float]
