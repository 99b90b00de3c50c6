"""Methods as points on axes: init, adapt, calibrate, aggregate, gate; their names, and how they run."""

# importing these modules registers their functions
from otpt import calibration as _calibration  # noqa: F401 (registers the calibrators)
from otpt.methods import aggregations, caches, gates, prototypes, text_shift  # noqa: F401
from otpt.methods.attributes import read_attributes
from otpt.methods.kinds import Group, Kind, register_kind
from otpt.methods.method import Method
from otpt.methods.names import (
    compose,
    field_methods,
    field_names,
    get_method,
    get_methods,
    known_parts,
    list_methods,
    list_parts,
    load_methods,
    published_methods,
    published_names,
    register_methods,
)
from otpt.methods.output import KEPT_INIT, Output
from otpt.methods.plugins import load_plugin
from otpt.methods.predictor import Predictor
from otpt.plugins import EvaluationHook, import_plugins
from otpt.registry import AVAILABLE, FAMILIES, adaptation, aggregation, calibrator, gate, objective
from otpt.settings import DEFAULT_METHOD

__all__ = [
    "AVAILABLE",
    "DEFAULT_METHOD",
    "FAMILIES",
    "KEPT_INIT",
    "EvaluationHook",
    "Group",
    "Kind",
    "Method",
    "Output",
    "Predictor",
    "adaptation",
    "aggregation",
    "calibrator",
    "compose",
    "field_methods",
    "field_names",
    "gate",
    "get_method",
    "get_methods",
    "known_parts",
    "list_methods",
    "list_parts",
    "load_methods",
    "load_plugin",
    "objective",
    "published_methods",
    "published_names",
    "read_attributes",
    "register_kind",
    "register_methods",
]

import_plugins("methods")
