"""otpt: calibrated test-time prompt tuning of CLIP-like models.

import otpt

clf = otpt.load("ViT-B-16/openai", method="o-tpt")
clf.set_classes(["abyssinian", "beagle", "pug"])     # the text side, once
prediction = clf.predict("dog.jpg")                  # prediction.label, .confidence, .probabilities

The public names are listed in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader as lazy

__getattr__, __dir__, _names = lazy.attach_stub(__name__, __file__)

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
