"""Routes that tell what there is: models, methods, class lists, examples, health and counters."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import cache
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from otpt.errors import OtptError
from otpt.methods import field_names, known_parts, published_names
from otpt.registry import AXES
from otpt.serve.http.openapi import BAD
from otpt.serve.http.queries import served_method
from otpt.serve.service import Service

_EXAMPLES = {"emoji/animals": (0, 1, 5, 17), "emoji/food": (0, 4, 12, 30), "emoji/travel": (40, 60)}
"""Set → positions of images that the page offers."""
_OFFERED = 8
"""Labels that come with an image."""


def add_information(app: FastAPI, service: Service) -> None:
    """Add them to an application."""
    catalogue = service.catalogue

    @app.get("/healthz", summary="Whether the process answers")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", summary="Whether the models are warm", responses={503: {"description": "not yet, or closing"}})
    async def readyz() -> Response:
        return JSONResponse({"status": "ready" if service.ready else "not ready"}, 200 if service.ready else 503)

    @app.get("/metrics", summary="Counters in Prometheus' format", responses=BAD)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models", summary="Loaded models, default views and seed", responses=BAD)
    async def models() -> dict[str, Any]:
        listed = [
            {
                "name": name,
                "backbone": backbone.name,
                "fingerprint": backbone.fingerprint,
                "device": backbone.device.type,
                "embed_dim": backbone.embed_dim,
                "image_size": backbone.preprocessing.size,
            }
            for name, backbone in catalogue.models.items()
        ]
        return {"default": listed[0]["name"], "views": catalogue.views, "seed": catalogue.seed, "models": listed}

    @app.get("/v1/methods", summary="Methods, and the parts that names are made of", responses=BAD)
    def methods() -> dict[str, Any]:
        return {"default": catalogue.method, **_methods()}

    @app.get("/v1/classes", summary="Named class lists and calibrations", responses=BAD)
    async def classes() -> dict[str, Any]:
        return {
            "classes": [
                {"name": name, "count": len(own), "labels": list(own.names[:20])}
                for name, own in catalogue.classes.items()
            ],
            "calibrations": [
                {
                    "name": name,
                    "method": own.facts["method"]["name"],
                    "model": own.facts["model"]["name"],
                    "labels": own.labels,
                    "count": len(own.class_names),
                }
                for name, own in catalogue.calibrations.items()
            ],
        }

    @app.get("/v1/examples", summary="A few embedded images, if the extra emoji is installed", responses=BAD)
    def examples() -> dict[str, Any]:
        return {"examples": _examples()}


@cache
def _methods() -> dict[str, Any]:
    """Methods that are served, with one line each; and all parts, axis by axis."""
    found = []
    for name in (*published_names(), *field_names()):
        try:
            method = served_method(name)
        except OtptError:
            continue
        found.append({"name": name, "summary": method.summary, "caution": method.caution})
    parts = {
        axis: [{"name": each.name, "summary": each.summary} for each in known_parts().values() if each.axis == axis]
        for axis in AXES
    }
    return {"methods": found, "parts": parts}


@cache
def _examples() -> list[dict[str, Any]]:
    from otpt.data.emoji import load_emoji

    found = []
    try:
        for name, positions in _EXAMPLES.items():
            data = load_emoji(name)
            for position in positions:
                file = io.BytesIO()
                data.image(position).save(file, "PNG")
                found.append(
                    {
                        "label": data.class_names[data.label(position)],
                        "labels": _around(data.class_names, data.label(position)),
                        "image": base64.b64encode(file.getvalue()).decode("ascii"),
                    }
                )
    except OtptError:  # the images are in another package, which is not installed
        return []
    return found


def _around(names: Sequence[str], at: int) -> list[str]:
    """A class and its neighbours in the list, which are hard to tell from it."""
    first = max(0, min(at - 3, len(names) - _OFFERED))
    return list(names[first : first + _OFFERED])
