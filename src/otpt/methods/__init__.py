"""Methods as points on axes: init, adapt, calibrate, aggregate, gate; their names, and how they run.

Everything that other packages and plugins use of it is imported here.
"""

# importing these modules registers their functions
from otpt import calibration as _calibration  # noqa: F401 (registers the calibrators)
from otpt.hooks import EvaluationHook
from otpt.methods import (  # noqa: F401
    aggregations,
    caches,
    coop,
    fpp,
    gates,
    gaussians,
    inits,
    maple,
    online,
    prompt_align,
    prompt_streams,
    propagation,
    text_shift,
    view_selection,
)
from otpt.methods.attributes import names_with_attributes, read_attributes
from otpt.methods.coop import coop_context
from otpt.methods.facts import calibration_facts, column_facts, method_numbers, numbers_on, plain, prompt_facts
from otpt.methods.finish import KEPT_INIT, Output
from otpt.methods.inits import (
    Group,
    by_kind,
    check_fit,
    columns,
    prompts_of,
    refuse_views,
    templates_of,
    text_state,
)
from otpt.methods.kinds import Kind, Methods, kind_of, recipe_for, register_kind
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
from otpt.methods.path import Batch
from otpt.methods.predictor import Predictor, stream
from otpt.plugins import import_plugins, load_plugin
from otpt.registry import AVAILABLE, FAMILIES, Part, adaptation, aggregation, calibrator, gate, objective
from otpt.settings import DEFAULT_METHOD

__all__ = [
    "AVAILABLE",
    "DEFAULT_METHOD",
    "FAMILIES",
    "KEPT_INIT",
    "Batch",
    "EvaluationHook",
    "Group",
    "Kind",
    "Method",
    "Methods",
    "Output",
    "Part",
    "Predictor",
    "adaptation",
    "aggregation",
    "by_kind",
    "calibration_facts",
    "calibrator",
    "check_fit",
    "column_facts",
    "columns",
    "compose",
    "coop_context",
    "field_methods",
    "field_names",
    "gate",
    "get_method",
    "get_methods",
    "kind_of",
    "known_parts",
    "list_methods",
    "list_parts",
    "load_methods",
    "load_plugin",
    "method_numbers",
    "names_with_attributes",
    "numbers_on",
    "objective",
    "plain",
    "prompt_facts",
    "prompts_of",
    "published_methods",
    "published_names",
    "read_attributes",
    "recipe_for",
    "refuse_views",
    "register_kind",
    "register_methods",
    "stream",
    "templates_of",
    "text_state",
]

import_plugins("methods")
