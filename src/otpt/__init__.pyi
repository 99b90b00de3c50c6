from . import (
    backbones,
    calibration,
    data,
    errors,
    evaluation,
    features,
    functional,
    images,
    learning,
    methods,
    metrics,
    objectives,
    prompts,
    report,
    runs,
    views,
)
from ._version import __version__
from .backbones import Backbone, load_backbone
from .classifier import Classifier, load
from .errors import OtptError
from .hugging_face import pipeline
from .methods import (
    Method,
    adaptation,
    aggregation,
    calibrator,
    gate,
    get_method,
    load_methods,
    load_plugin,
    objective,
)
from .prediction import Failure, Prediction
from .prompts import Prompt
from .views import ViewRecipe

__all__ = [
    "Backbone",
    "Classifier",
    "Failure",
    "Method",
    "OtptError",
    "Prediction",
    "Prompt",
    "ViewRecipe",
    "__version__",
    "adaptation",
    "aggregation",
    "backbones",
    "calibration",
    "calibrator",
    "data",
    "errors",
    "evaluation",
    "features",
    "functional",
    "gate",
    "get_method",
    "images",
    "learning",
    "load",
    "load_backbone",
    "load_methods",
    "load_plugin",
    "methods",
    "metrics",
    "objective",
    "objectives",
    "pipeline",
    "prompts",
    "report",
    "runs",
    "views",
]
