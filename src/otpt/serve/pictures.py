"""What answers show of an image: thumbnails of its views, and the heat map of a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from otpt.backbones import Backbone
from otpt.decoders import Decoders
from otpt.explain import HeatMap, crop_map
from otpt.features.pipeline import PixelBudget
from otpt.methods import Predictor
from otpt.objectives import select_fraction, view_entropies
from otpt.serve.admission import Turns
from otpt.serve.engine import Unit
from otpt.serve.images import data_url
from otpt.serve.pools import run_in
from otpt.serve.schemas import HeatMapAnswer, ViewsAnswer
from otpt.serve.watch import Watch
from otpt.threads import make_pool
from otpt.views import Preprocessing, make_views

_SELECTED = 0.1  # fraction of views that TPT selects: 6 of 64
_THUMBNAIL = 64  # pixels of a side


class Pictures:
    """Views and heat maps of answered images, one after the other.

    Args:
        models: backbones by name.
        decoders: decode the image again.
        pixels: limit on concurrently decoded images.
        turns: limits of each client.
        watch: registers work that should stop.
    """

    def __init__(
        self, models: Mapping[str, Backbone], decoders: Decoders, pixels: PixelBudget, turns: Turns, watch: Watch
    ) -> None:
        self._models, self._decoders, self._pixels, self._turns = models, decoders, pixels, turns
        self._watch = watch
        self._pool = make_pool(1, "otpt-pictures")

    async def views(self, unit: Unit, stop: Callable[[], bool]) -> ViewsAnswer:
        """Return the views as data URLs, entropies of their zero-shot predictions, and selected indices."""
        async with self._turns.wait("pictures", unit.client, 1):
            return await run_in(self._pool, self._views, unit, stop)

    async def heat_map(
        self, label: str | bool, unit: Unit, predictor: Predictor, stop: Callable[[], bool]
    ) -> HeatMapAnswer:
        """Return the heat map of a label, or of the label that the first method predicts, computed by zero-shot.

        The confidence is that of the first requested method.
        """
        async with self._turns.wait("pictures", unit.client, 1):
            return await run_in(self._pool, self._heat_map, label, unit, predictor, stop)

    def close(self) -> None:
        """Stop the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _views(self, unit: Unit, stop: Callable[[], bool]) -> ViewsAnswer:
        query, preprocessing = unit.query, self._models[unit.query.model].preprocessing
        recipes = [query.protocol.recipe_for(method) for method in query.protocol.methods]
        shown = max((recipe for recipe in recipes if recipe is not None), key=lambda r: r.n_views, default=None)
        if shown is None:  # the method makes its own views
            return {"images": [], "entropies": None, "selected": []}
        with self._pixels.hold(unit.image.pixels), self._watch.cancellable(stop):
            opened, digest = self._decoders.decode(unit.image.data)
            views = make_views(opened, shown, preprocessing, seed=query.protocol.seed, image_id=digest)
        answer: ViewsAnswer = {"images": thumbnails(views, preprocessing), "entropies": None, "selected": []}
        logits = unit.future.result().view_logits
        if logits is not None:
            answer["entropies"] = view_entropies(logits).tolist()
            answer["selected"] = select_fraction(logits, _SELECTED).tolist()
        return answer

    def _heat_map(self, label: str | bool, unit: Unit, predictor: Predictor, stop: Callable[[], bool]) -> HeatMapAnswer:
        prediction = next(iter(unit.query.predictions(unit.future.result().outputs).values()))
        names = unit.query.task.classes
        shown = prediction.class_names.index(label) if isinstance(label, str) else prediction.index
        index = names.index(label) if isinstance(label, str) else unit.query.position(prediction.index)

        def probabilities(features: Tensor) -> npt.NDArray[np.float64]:
            outputs = predictor.of_features(features[:, None])
            return np.array([output.probabilities[index] for (output,) in outputs])

        with self._pixels.hold(unit.image.pixels), self._watch.cancellable(stop):
            opened, _ = self._decoders.decode(unit.image.data)
            values = crop_map(self._models[unit.query.model], opened, probabilities)
            heat_map = HeatMap(values, names[index], float(prediction.probabilities[shown]), opened)
            image = data_url(heat_map.layer(), "PNG")
        return {
            "label": heat_map.label,
            "confidence": heat_map.confidence,
            "image": image,
            "peak": list(heat_map.peak),
        }


def thumbnails(views: npt.NDArray[np.floating], preprocessing: Preprocessing) -> list[str]:
    """Return normalised views (V, 3, S, S) as small JPEGs in data URLs."""
    mean = np.array(preprocessing.mean, np.float32)[:, None, None]
    std = np.array(preprocessing.std, np.float32)[:, None, None]
    pixels = np.clip((views * std + mean) * 255 + 0.5, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    size = (_THUMBNAIL, _THUMBNAIL)
    small = [Image.fromarray(view).resize(size, Image.Resampling.BILINEAR) for view in pixels]
    return [data_url(view, "JPEG") for view in small]
