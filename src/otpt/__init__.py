"""otpt: calibrated test-time adaptation of CLIP-like models.

    import otpt

    clf = otpt.load("ViT-B-16/openai", method="o-tpt")
    clf.set_classes(["abyssinian", "beagle", "pug"])     # text features, computed once
    prediction = clf.predict("dog.jpg")                  # prediction.label, .confidence, .probabilities

The public names are listed in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader as lazy

_attribute, __dir__, _names = lazy.attach_stub(__name__, __file__)
_ELSEWHERE = {
    **dict.fromkeys(
        ("create_model_and_transforms", "create_model_from_pretrained", "create_model", "from_pretrained"),
        "write otpt.load('ViT-B-16/openai'), or give otpt.load a model that you have in memory",
    ),
    **dict.fromkeys(
        ("list_pretrained", "list_models", "available_models"),
        "write otpt.backbones.list_models(), or `otpt models` on the command line",
    ),
    "get_tokenizer": "a model that is loaded by name has its tokenizer; give that of a model in memory as tokenizer=",
    "pipeline": "write clf = otpt.load(MODEL), then clf(image, candidate_labels=[…])",
}
"""Names of open_clip, OpenAI's clip and Hugging Face."""


def __getattr__(name: str) -> object:
    if name in _names:
        return _attribute(name)
    from otpt.errors import no_attribute

    raise no_attribute(__name__, name, _names, _ELSEWHERE)


_ROOMS = {
    "backbones",
    "calibration",
    "data",
    "errors",
    "evaluation",
    "features",
    "functional",
    "images",
    "learning",
    "methods",
    "metrics",
    "objectives",
    "prompts",
    "report",
    "runs",
    "views",
}
__all__ = [name for name in _names if name not in _ROOMS]  # so that a star brings functions and classes, not all rooms
