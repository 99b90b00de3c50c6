"""Methods as points on axes: init, adapt, calibrate, aggregate, gate; their names, and how they run."""

# importing these modules registers their functions
from otpt import calibration as _calibration  # noqa: F401
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
    prompt_streams,
    text_shift,
    view_selection,
)
from otpt.methods.attributes import names_with_attributes, read_attributes
from otpt.methods.finish import KEPT_INIT, Output
from otpt.methods.inits import (
    Group,
    by_kind,
    calibration_facts,
    check_fit,
    column_facts,
    columns,
    learned_prompt,
    method_numbers,
    numbers_on,
    plain,
    prompt_facts,
    prompts_of,
    refuse_views,
    templates_of,
    text_state,
)
from otpt.methods.method import Kind, Method, Methods, kind_of, recipe_for, register_kind
from otpt.methods.names import (
    compose,
    field_methods,
    field_names,
    get_method,
    get_methods,
    known_parts,
    load_methods,
    published_methods,
    published_names,
    register_methods,
)
from otpt.methods.path import Batch
from otpt.methods.predictor import Predictor, stream
from otpt.plugins import import_plugins, load_plugin
from otpt.registry import adaptation, aggregation, calibrator, gate, objective

__all__ = [
    "KEPT_INIT",
    "Batch",
    "Group",
    "Kind",
    "Method",
    "Methods",
    "Output",
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
    "field_methods",
    "field_names",
    "gate",
    "get_method",
    "get_methods",
    "kind_of",
    "known_parts",
    "learned_prompt",
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
