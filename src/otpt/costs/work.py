"""What one image costs under one seed, for a set of methods that are run together.

    image tower       each kind of views once, with the largest number that a method needs
    logits            2 · V · C · D for the views under the initial texts, and again for each method that adapts them
    gradient          one vector–Jacobian product for each distinct view objective; methods share it
    forward           one pass of the text features for each distinct one-step config that sees the views
    more steps        a product and a forward pass for each step, of each such config
    without gradient  small products with the texts or with remembered features, see ``_LIGHT``
    streams           a second pass over the images, whose features come from the cache

Every gate is taken to be open: where images keep zero-shot, less is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from otpt.costs.architecture import Architecture
from otpt.costs.language import Texts, text_forward, text_product
from otpt.costs.operations import Cost, linear, total
from otpt.costs.vision import CHUNK, image_tower
from otpt.errors import OtptError
from otpt.methods import Method
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.prompts import MEMORY_BUDGET
from otpt.registry import STREAM, TEMPLATES

_NOT_COVERED = {"maple": "MaPLe", "promptsmooth": "PromptSmooth", "baple": "BAPLe", "fpt": "FPT"}
_LIGHT = {"tps": 6.0, "tps-shared": 6.0, "sts": 6.0, "tda": 10.0, "boostadapter": 70.0, "boost": 70.0, "dmn": 100.0,
          "bca": 6.0, "dpe": 40.0, "mta": 4.0, "reliability": 4.0}  # fmt: skip
"""Operations of adaptations and aggregations without a pass through the text tower, in units of C · D (``mta`` and
``reliability``: of V · D): the features that they remember per class, and their gradient where they have one."""
SYNCHRONISATIONS = 2
"""Per batch of images, of methods that treat each image for itself: the selection of the views, and the answer. The
host waits there for the device; a stream method makes it wait for every image."""


@dataclass(frozen=True)
class ImageCost:
    """One image under one seed.

    Attributes:
        views: encoded, over all kinds of views.
        mixed: of these, made by AugMix.
        image: the image tower.
        text: the text tower: products and forward passes.
        rest: logits, and methods without a pass through the text tower.
        synchronisations: at most, with so many images in a batch.
        once: preparation of the text features, once per class list.
    """

    views: int
    mixed: int
    image: Cost
    text: Cost
    rest: Cost
    synchronisations: float
    once: Cost
    passes: dict[str, int] = field(default_factory=dict)

    @property
    def all(self) -> Cost:
        """Everything that is done for the image."""
        return total(self.image, self.text, self.rest)


def image_cost(
    model: Architecture,
    texts: Texts,
    methods: Sequence[Method],
    *,
    views: int = 64,
    augmix: bool = True,
    family: str = "fine-grained",
    dataset: str = "",
    prompts: int = 1,
    cached: bool = True,
    budget: float = MEMORY_BUDGET,
    chunk: int = CHUNK["cpu"],
    batch: int = 1,
) -> ImageCost:
    """The cost of ``methods`` on one image.

    Args:
        texts: tokens of the class list.
        views: of methods that do not ask for another number, the clean one included.
        augmix: whether views are mixed, where a method does not decide.
        prompts: initial contexts that each method starts from.
        cached: streams find the features of the other methods' pass in the cache.
        budget: bytes that a graph of text features may take; beyond, it is computed again for each product.
        chunk: views that go through the image tower together.
        batch: images that are predicted together.
    """
    if not methods:
        raise OtptError("No method was given; expected at least one.")
    for method in methods:
        name = _NOT_COVERED.get(method.adapt, _NOT_COVERED.get(method.init))
        if name is not None:
            raise OtptError(
                f"The cost of {method.name!r} is not known: {name} runs a network of its own; leave it out."
            )
    in_order = [method for method in methods if method.scope == STREAM]
    by_image = [method for method in methods if method.scope != STREAM]
    kinds = _views(by_image or in_order, views, augmix, family, dataset)
    most = max(kinds.values())
    twice = in_order and by_image and not cached
    again = _views(in_order, views, augmix, family, dataset) if twice else {}
    encoded = [*kinds.values(), *again.values()]
    towers = total(*(image_tower(model, count, chunk=chunk) for count in encoded))
    forward, product = text_forward(model, texts), text_product(model, texts, budget=budget)
    products, forwards = _passes(methods, most, family, dataset)
    forwards += any(method.init == "cocoop" for method in methods)  # its contexts, which depend on the image
    logits = linear(most, model.features, texts.classes)
    adapted = sum(method.needs_adapted_views for method in methods)
    light = sum(_light(method, model.features, texts.classes, most) for method in methods)
    waits = (SYNCHRONISATIONS / batch if by_image else 0.0) + len(in_order)
    return ImageCost(
        views=sum(encoded),
        mixed=sum(count - 1 for found in (kinds, again) for mixed, count in found.items() if mixed),
        image=towers,
        text=prompts * total(products * product, forwards * forward),
        rest=prompts * total((1 + adapted) * logits, Cost(products=light)),
        synchronisations=waits,
        once=prompts * total(forward, product),
        passes={"products": prompts * products, "forwards": prompts * forwards},
    )


def _views(methods: Sequence[Method], views: int, augmix: bool, family: str, dataset: str) -> dict[bool, int]:
    """Mixed or not → the largest number of views that a method needs; the clean view is part of either."""
    found: dict[bool, int] = {}
    for method in methods:
        mixed = augmix if method.augmix is None else method.augmix
        own = views if method.views is None else method.views
        found[mixed] = max(found.get(mixed, 1), own if method.needs_views(family, dataset) else 1)
    if len(found) == 2 and min(found.values()) == 1:  # the clean view alone is the same of both kinds
        found = {mixed: count for mixed, count in found.items() if count > 1} or {False: 1}
    return found


def _passes(methods: Sequence[Method], views: int, family: str, dataset: str) -> tuple[int, int]:
    """(products, forward passes) of an image through the text tower, of all methods that share an init."""
    products = forwards = 0
    inits = dict.fromkeys(method.init for method in methods if method.tunes and method.init not in TEMPLATES)
    for init in inits:
        own = [method.tuning(family, dataset) for method in methods if method.tunes and method.init == init]
        configs = [config for config in dict.fromkeys(own) if config is not None]
        once = [config for config in configs if config.closed_form and init != "cocoop"]
        products += len({each for config in once for each in _objectives(config, views)})
        forwards += sum(not config.static for config in once)
        for config in configs:
            if config not in once:
                parts = (config.view_weights, config.text_weights) if config.two_step else (config.weights,)
                steps = config.steps * sum(1 for part in parts if part)
                products, forwards = products + steps, forwards + steps + (init == "cocoop")
    return products, forwards


def _objectives(config: TuningConfig, views: int) -> list[tuple[object, ...]]:
    """The view objectives of a config, as far as their gradients differ."""
    facts = (config.reference, config.selected_count(views), config.selection, config.settings)
    return [(name, *(facts if name != "entropy" else facts[1:])) for name, _ in config.view_weights]


def _light(method: Method, features: int, classes: int, views: int) -> float:
    of_classes = _LIGHT.get(method.adapt, 0.0) * classes * features
    return of_classes + _LIGHT.get(method.aggregate, 0.0) * views * views * features
