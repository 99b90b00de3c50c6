from .axes import AVAILABLE
from .inits.attributes import read_attributes
from .method import Method
from .names.parts import compose, field_names, known_parts, published_names
from .names.registry import DEFAULT_METHOD, field_methods, get_method, get_methods, load_methods, published_methods
from .output import KEPT_INIT, Output
from .plugins import adaptation, aggregation, calibration, gate, load_plugin, objective
from .running.predictor import Predictor
from .settings import FAMILIES
from .task import Task

__all__ = [
    "AVAILABLE",
    "DEFAULT_METHOD",
    "FAMILIES",
    "KEPT_INIT",
    "Method",
    "Output",
    "Predictor",
    "Task",
    "adaptation",
    "aggregation",
    "calibration",
    "compose",
    "field_methods",
    "field_names",
    "gate",
    "get_method",
    "get_methods",
    "known_parts",
    "load_methods",
    "load_plugin",
    "objective",
    "published_methods",
    "published_names",
    "read_attributes",
]
