"""Routes that classify: ``/v1/predict``, ``/v1/compare`` and those of Hugging Face's clients."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from otpt.classifier import candidates
from otpt.errors import OtptError
from otpt.serve.http.answers import answered, compared, predicted, scored
from otpt.serve.http.errors import unusable_image
from otpt.serve.http.openapi import BAD, body_of
from otpt.serve.http.reading import parse_json, read_request
from otpt.serve.http.schemas import (
    Asked,
    CompareAnswer,
    CompareRequest,
    HubRequest,
    PredictAnswer,
    PredictRequest,
    Scored,
)
from otpt.serve.service import Service


def add_routes(app: FastAPI, service: Service) -> None:
    """Add them to an application."""

    @app.post(
        "/v1/predict",
        response_model=PredictAnswer,
        responses=BAD,
        openapi_extra=body_of(PredictRequest, forms=True),
        summary="One method on one or many images",
    )
    async def predict(request: Request) -> Any:
        asked, files = await read_request(request.headers, await request.body(), PredictRequest, service.limits)
        method = service.catalogue.method if asked.method is None else asked.method
        query, answers, seconds = await service.answer(asked, [method], files)
        return JSONResponse(
            {
                "model": query.model,
                "method": query.methods[0].name,
                "labels": list(query.settings.classes),
                **answered(answers, lambda each: predicted(query, each, asked.top), seconds),
            }
        )

    @app.post(
        "/v1/compare",
        response_model=CompareAnswer,
        responses=BAD,
        openapi_extra=body_of(CompareRequest, forms=True),
        summary="Several methods on the same views",
    )
    async def compare(request: Request) -> Any:
        asked, files = await read_request(request.headers, await request.body(), CompareRequest, service.limits)
        query, answers, seconds = await service.answer(asked, asked.methods, files, show_views=asked.show_views)
        return JSONResponse(
            {
                "model": query.model,
                "labels": list(query.settings.classes),
                **answered(answers, lambda each: compared(query, each, asked.top), seconds),
            }
        )

    async def classify(request: Request, model: str | None) -> Any:
        asked = parse_json(await request.body(), HubRequest)
        given, image = asked.parameters, asked.inputs if isinstance(asked.inputs, str) else asked.inputs.image
        listed = candidates(given.candidate_labels, given.hypothesis_template)
        assert listed is not None
        fields = Asked(image=image, labels=list(listed[0]), template=listed[1], model=model)
        method = service.catalogue.method if given.method is None else given.method
        _, answers, _ = await service.answer(fields, [method])
        (answer,) = answers
        if isinstance(answer, OtptError):
            raise unusable_image(answer)
        return JSONResponse(scored(answer))

    shape: dict[str, Any] = {
        "response_model": list[Scored],
        "responses": BAD,
        "openapi_extra": body_of(HubRequest),
        "summary": "Zero-shot image classification in the shape of Hugging Face's clients",
    }

    @app.post("/models/{model:path}", **shape)
    async def classify_by(request: Request, model: str) -> Any:
        return await classify(request, model)

    @app.post("/", **shape)
    async def classify_default(request: Request) -> Any:
        return await classify(request, None)
