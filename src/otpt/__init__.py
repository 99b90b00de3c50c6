"""otpt: calibrated test-time prompt tuning of CLIP-like models.

import otpt

clf = otpt.load("ViT-B-16/openai", method="o-tpt")
clf.set_classes(["abyssinian", "beagle", "pug"])     # the text side, once
prediction = clf.predict("dog.jpg")                  # prediction.label, .confidence, .probabilities
"""

from __future__ import annotations

from otpt._version import __version__
from otpt.backbones import Backbone, load_backbone
from otpt.classifier import Classifier, Prediction, load
from otpt.errors import OtptError
from otpt.methods import Method, builtin_methods, get_method, load_methods
from otpt.prompts import Prompt
from otpt.views import ViewRecipe

__all__ = [
    "Backbone",
    "Classifier",
    "Method",
    "OtptError",
    "Prediction",
    "Prompt",
    "ViewRecipe",
    "__version__",
    "builtin_methods",
    "get_method",
    "load",
    "load_backbone",
    "load_methods",
]
