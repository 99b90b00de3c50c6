"""Requests and answers of the HTTP interface; FastAPI validates and describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from otpt.serve.errors import read_json
from otpt.settings import Settings

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A PNG of one red pixel, for examples."""
_EXAMPLE: dict[str, JsonValue] = {"image": PIXEL, "labels": ["cat", "dog", "red panda"]}

Name = Annotated[str, Field(max_length=200)]
Texts = Annotated[list[str], Field(fail_fast=True)]  # one error, not millions
_FIELDS = Settings.model_fields


class Options(BaseModel):
    """Fields common to requests of ``/v1/predict`` and ``/v1/compare``."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    labels: Texts | Annotated[list[Texts], Field(fail_fast=True)] | None = Field(
        None, description="class names of all images, or a list of class names for each image"
    )
    classes: Name | None = Field(None, description="name of a class list (GET /v1/classes), in place of labels")
    model: Name | None = Field(None, description="one of GET /v1/models; the first by default")
    template: str | None = Field(None, description="words around a class name: 'a photo of a {}.'")
    templates: Texts | None = Field(None, description="sentences with {}, whose text features are averaged")
    top: int = Field(5, ge=1, le=1_000_000, description="number of classes in the answer")
    multi_label: bool = Field(False, description=_FIELDS["multi_label"].description)
    groups: dict[str, JsonValue] | None = Field(None, description="{group: class names}, nested or not")
    threshold: float = Field(
        0.5, ge=0, le=1, description="probability that labels_above (multi_label) and back_off (groups) must reach"
    )
    explain: bool | Name = Field(False, description="a heat map of the best label, or of this one; for a single image")
    calibration: Texts | None = Field(None, description="names of calibrations (GET /v1/classes), one per method")
    coverage: float | None = Field(None, gt=0, lt=1, description=_FIELDS["coverage"].description)
    risk: float | None = Field(None, gt=0, lt=1, description=_FIELDS["risk"].description)
    reject: bool | Name | None = Field(None, description="mark images that fit no label; true, or a score's name")
    seed: int | None = Field(None, ge=0, lt=1 << 63, description=_FIELDS["seed"].description)
    views: int | None = Field(None, ge=1, le=1_000_000, description=_FIELDS["views"].description)


class JsonOptions(Options):
    """Images in JSON: base64, data URLs, or addresses on allowed hosts."""

    model_config = ConfigDict(strict=True)

    image: str | None = Field(None, description="one image: its file in base64, or a data URL")
    images: Texts | None = Field(None, min_length=1, description="several images, in place of one")

    @model_validator(mode="after")
    def _check_images(self) -> JsonOptions:
        if (self.image is None) == (self.images is None):
            raise ValueError("expected either image or images")
        return self

    async def files(self) -> list[Any]:
        """The images."""
        return self.images or [self.image]


class FormOptions(Options):
    """Images as file parts; a list is repeated fields, a text with commas, or JSON."""

    image: list[UploadFile] = Field(min_length=1, description="image files")

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(given)
        for name in {"labels", "templates", "methods", "calibration", "groups"} & set(found):
            texts = found[name] if isinstance(found[name], list) else [found[name]]
            if len(texts) == 1 and isinstance(text := texts[0], str):
                data = text.encode("utf-8", "surrogatepass")
                found[name] = read_json(data) if text[:1] in ("[", "{") else [word.strip() for word in text.split(",")]
        for name in {"reject", "explain"} & set(found):
            text = str(found[name])
            found[name] = {"true": True, "false": False}.get(text.lower(), text)
        return found

    async def files(self) -> list[Any]:
        """The images."""
        return [await each.read() for each in self.image]


class _Predict(BaseModel):
    show_views: ClassVar[bool] = False
    method: Name | None = Field(None, description="name of a method (GET /v1/methods)")

    @property
    def methods(self) -> list[str]:
        """The method, or none for the default."""
        return [] if self.method is None else [self.method]


class _Compare(BaseModel):
    methods: Texts = Field(min_length=1, description="names of methods (GET /v1/methods)")
    show_views: bool = Field(False, description="answer with the views of the image, too; for a single image")


class PredictRequest(JsonOptions, _Predict):
    """``POST /v1/predict``."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**_EXAMPLE, "method": "zero-shot", "views": 1}]})


class PredictForm(FormOptions, _Predict):
    """``POST /v1/predict/form``."""


class CompareRequest(JsonOptions, _Compare):
    """``POST /v1/compare``."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{**_EXAMPLE, "methods": ["zero-shot", "o-tpt"], "views": 8}]}
    )


class CompareForm(FormOptions, _Compare):
    """``POST /v1/compare/form``."""


class HubParameters(BaseModel):
    """Parameters of Hugging Face's zero-shot image classification."""

    candidate_labels: Texts | str = Field(description="class names, or a text with commas")
    hypothesis_template: str | None = Field(None, description="'This is a photo of {}.'")
    method: Name | None = Field(None, description="our own: name of a method")


class HubRequest(BaseModel):
    """``POST /models/{model}``, as Hugging Face's clients send it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": PIXEL, "parameters": {"candidate_labels": _EXAMPLE["labels"]}}]}
    )

    inputs: str | dict[Literal["image"], str] = Field(description="an image in base64")
    parameters: HubParameters = Field(description="an object with candidate_labels")


Asked = PredictRequest | PredictForm | CompareRequest | CompareForm
FIELDS = sorted({*PredictRequest.model_fields, *CompareRequest.model_fields, *HubRequest.model_fields})
"""Names of the fields of all requests."""
ELSEWHERE = {*_FIELDS, "examples", "attributes", "text_features"} - {*FIELDS}
"""Settings that requests do not have."""


class Scored(BaseModel):
    """A label with its probability."""

    label: str
    score: float


class ErrorAnswer(BaseModel):
    """The body of every answer that is not 2xx."""

    error: dict[Literal["type", "message", "given", "expected", "hint"], Any]


class Result(BaseModel):
    """Prediction of a method for an image; fields after ``extras`` are present only on request."""

    label: str
    confidence: float
    index: int
    top: list[Scored]
    flags: list[str]
    extras: dict[str, float | None]
    labels_above: list[str] | None = Field(
        None, description="labels that reach the threshold, with multi_label or one label"
    )
    groups: dict[str, float] | None = Field(None, description="the probability of each group, with groups")
    back_off: dict[Literal["name", "confidence", "classes"], Any] | None = Field(
        None, description="the most specific class or group that reaches the threshold, null if none does; with groups"
    )
    set: list[str] | None = Field(None, description="the prediction set, with coverage")
    abstained: bool | None = Field(None, description="whether the confidence is too low, with risk")
    rejected: bool | None = Field(None, description="whether the image fits no label, with reject")
    unknown_score: float | None = Field(None, description="the score that decides it, with reject")
    heat_map: dict[Literal["label", "confidence", "image", "peak"], Any] | None = Field(
        None, description="where the image speaks for a label: a PNG to lay over it, and the hottest pixel; /v1/predict"
    )


class Compared(BaseModel):
    """Predictions of several methods for an image."""

    methods: dict[str, Result]
    views: dict[str, Any] | None = None
    heat_map: dict[str, Any] | None = None


class CompareAnswer(BaseModel):
    """Answer of ``/v1/compare``: a result or an error per image."""

    model: str
    labels: list[str] | list[list[str]]
    results: list[Compared | ErrorAnswer]
    seconds: dict[str, float]


class PredictAnswer(CompareAnswer):
    """Answer of ``/v1/predict``."""

    method: str
    results: list[Result | ErrorAnswer]  # type: ignore[assignment]


BAD: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": words}
    for status, words in {
        400: "not JSON, not base64, a damaged form, a request for another host",
        401: "no token, or a wrong one",
        403: "from a page of another site",
        408: "the request did not arrive in time",
        413: "too many bytes",
        415: "another content type",
        422: "it can be read but not used: an image, a label, a name, a number",
        429: "busy; see Retry-After",
        503: "not answered in time, or shutting down; see Retry-After",
    }.items()
}
"""Error answers of routes."""
