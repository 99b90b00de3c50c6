from . import backbones as backbones
from . import calibration as calibration
from . import data as data
from . import errors as errors
from . import evaluation as evaluation
from . import learning as learning
from . import medical as medical
from . import methods as methods
from . import metrics as metrics
from . import objectives as objectives
from . import prompts as prompts
from . import report as report
from . import tuning as tuning
from . import views as views
from ._version import __version__
from .backbones import Backbone, load_backbone
from .classifier import Classifier, Prediction, load
from .errors import OtptError
from .methods import Method, builtin_methods, get_method, load_methods
from .prompts import Prompt
from .views import ViewRecipe

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
