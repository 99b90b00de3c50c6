"""Requests and answers of the HTTP interface; FastAPI validates and describes them.

Most fields of requests come from the records of the library; see :mod:`otpt.serve.fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NotRequired, final

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model, model_validator
from typing_extensions import TypedDict

from otpt.serve.errors import ErrorAnswer, read_json
from otpt.serve.fields import Name, record_fields, refusals, request_fields

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A PNG of one red pixel, for examples."""
_EXAMPLE: dict[str, JsonValue] = {"image": PIXEL, "labels": ["cat", "dog", "red panda"]}

Named = Annotated[str, Field(min_length=1, max_length=200)]
Texts = Annotated[list[str], Field(fail_fast=True)]  # one error, not millions

if TYPE_CHECKING:
    RecordFields = BaseModel
else:
    RecordFields = create_model("RecordFields", **request_fields())
_RECORD_FIELDS = tuple(record_fields())


# ---- requests -------------------------------------------------------------------------------------------------------


class Options(RecordFields):
    """Fields common to requests of ``/v1/predict`` and ``/v1/compare``."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    labels: Texts | Annotated[list[Texts], Field(fail_fast=True)] | None = Field(
        None, description="class names of all images, or a list of class names for each image"
    )
    classes: Name | None = Field(None, description="name of a class list (GET /v1/classes), in place of labels")
    model: Name | None = Field(None, description="one of GET /v1/models; the first by default")
    prompt: str | None = Field(None, description="words before a class name, or around it: 'a photo of a {}.'")
    templates: Texts | None = Field(None, description="sentences with {}, whose text features are averaged")
    groups: dict[str, JsonValue] | None = Field(None, description="{group: class names}, nested or not")
    calibration: Texts | None = Field(None, description="names of calibrations (GET /v1/classes), one per method")
    reject: bool | Named | None = Field(None, description="mark images that fit no label; true, or a score's name")
    top: int = Field(5, ge=1, le=1_000_000, description="number of classes in the answer")
    explain: bool | Named = Field(False, description="a heat map of the best label, or of this one; for a single image")

    @property
    def has_lists(self) -> bool:
        """Whether each image has its own list of labels."""
        return self.labels is not None and any(isinstance(names, list) for names in self.labels)

    def record_values(self) -> dict[str, object]:
        """Return the values of the records' fields that the request sets, apart from those with their own form."""
        values = {name: getattr(self, name) for name in _RECORD_FIELDS if name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None}


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

    async def files(self) -> list[str | bytes]:
        """Return the images as texts."""
        return [self.image] if self.image is not None else list(self.images or ())


class FormOptions(Options):
    """Images as file parts; a list is repeated fields, a text with commas, or JSON."""

    image: list[UploadFile] = Field(default_factory=list, description="image files")
    images: list[UploadFile] = Field(default_factory=list, description="image files, too")

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, values: Mapping[str, object]) -> dict[str, object]:
        read = dict(values)
        for name in {"labels", "templates", "methods", "calibration", "groups"} & set(read):
            value = read[name]
            texts = value if isinstance(value, list) else [value]
            if len(texts) == 1 and isinstance(texts[0], str):
                read[name] = _read_list(texts[0])
        for name in {"reject", "explain"} & set(read):
            text = str(read[name])
            read[name] = {"true": True, "false": False}.get(text.lower(), text)
        return read

    @model_validator(mode="after")
    def _check_images(self) -> FormOptions:
        if bool(self.image) == bool(self.images):
            raise ValueError("expected file parts image or images")
        return self

    async def files(self) -> list[str | bytes]:
        """Return the bytes of the images."""
        return [await part.read() for part in self.image or self.images]


def _read_list(text: str) -> JsonValue:
    """Read a field of a form: JSON, or texts with commas between them."""
    if text[:1] in ("[", "{"):
        return read_json(text.encode("utf-8", "surrogatepass"))
    return [word.strip() for word in text.split(",")]


class _Predict(BaseModel):
    show_views: ClassVar[bool] = False
    method: Name | None = Field(None, description="name of a method (GET /v1/methods)")

    @property
    def methods(self) -> list[str]:
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

    model_config = ConfigDict(extra="forbid")

    candidate_labels: Texts | str = Field(description="class names, or a text with commas")
    hypothesis_template: str | None = Field(None, description="'This is a photo of {}.'")
    method: Name | None = Field(None, description="our own: name of a method")


class HubRequest(BaseModel):
    """``POST /models/{model}``, as Hugging Face's clients send it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"inputs": PIXEL, "parameters": {"candidate_labels": _EXAMPLE["labels"]}}]},
    )

    inputs: str | dict[Literal["image"], str] = Field(description="an image in base64")
    parameters: HubParameters = Field(description="an object with candidate_labels")


ImageRequest = PredictRequest | PredictForm | CompareRequest | CompareForm
FIELDS = sorted({*PredictRequest.model_fields, *CompareRequest.model_fields, *HubRequest.model_fields})
"""Names of the fields of all requests."""
REPEATED = ("image", "images", "labels", "templates", "methods", "calibration")
"""Fields of forms that may be given several times."""
REFUSED = {**refusals(), "template": "requests give it as prompt, like Python and the command line"}
"""Why requests do not have other fields of the records, by name."""


# ---- answers --------------------------------------------------------------------------------------------------------


class Scored(TypedDict):
    """A label with its probability."""

    label: str
    score: float


class BackOff(TypedDict):
    """A class or group that reaches the threshold."""

    name: str
    confidence: float
    classes: int


class HeatMapAnswer(TypedDict):
    """Where the image speaks for a label."""

    label: str
    confidence: float
    image: Annotated[str, Field(description="a PNG to lay over the image, as a data URL")]
    peak: Annotated[list[int], Field(description="x and y of the hottest pixel")]


class ViewsAnswer(TypedDict):
    """Views of an image, the clean one first."""

    images: Annotated[list[str], Field(description="data URLs")]
    entropies: Annotated[list[float] | None, Field(description="of the zero-shot predictions")]
    selected: Annotated[list[int], Field(description="views that TPT selects")]


@final
class Result(TypedDict):
    """Prediction of a method for an image; fields after ``extras`` are present only on request."""

    label: str
    confidence: float
    index: int
    top: list[Scored]
    flags: list[str]
    extras: dict[str, float | None]
    labels_above: NotRequired[
        Annotated[list[str], Field(description="labels that reach the threshold, with multi_label or one label")]
    ]
    groups: NotRequired[Annotated[dict[str, float], Field(description="the probability of each group, with groups")]]
    back_off: NotRequired[
        Annotated[
            BackOff | None,
            Field(description="the most specific class or group that reaches the threshold, null if none; with groups"),
        ]
    ]
    set: NotRequired[Annotated[list[str], Field(description="the prediction set, with coverage")]]
    abstained: NotRequired[Annotated[bool, Field(description="whether the confidence is too low, with risk")]]
    rejected: NotRequired[Annotated[bool, Field(description="whether the image fits no label, with reject")]]
    unknown_score: NotRequired[Annotated[float | None, Field(description="the score that decides it, with reject")]]
    heat_map: NotRequired[Annotated[HeatMapAnswer, Field(description="with explain, in /v1/predict")]]


@final
class Compared(TypedDict):
    """Predictions of several methods for an image."""

    methods: dict[str, Result]
    views: NotRequired[ViewsAnswer]
    heat_map: NotRequired[HeatMapAnswer]


class CompareAnswer(TypedDict):
    """Answer of ``/v1/compare``: a result or an error per image."""

    model: str
    labels: list[str] | list[list[str]]
    results: list[Compared | ErrorAnswer]
    seconds: dict[str, float]


class PredictAnswer(TypedDict):
    """Answer of ``/v1/predict``."""

    model: str
    method: NotRequired[Annotated[str, Field(description="absent if no image could be used")]]
    labels: list[str] | list[list[str]]
    results: list[Result | ErrorAnswer]
    seconds: dict[str, float]


class Information(TypedDict):
    """What requests can name: the answers of ``/v1/models`` and ``/v1/classes``, and the default method."""

    models: dict[str, JsonValue]
    classes: dict[str, JsonValue]
    method: str


BAD: dict[int | str, dict[str, object]] = {
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
