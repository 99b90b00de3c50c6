"""Methods as points on axes: init, adapt, calibrate, aggregate, gate; their names, and how they run."""

# importing these modules registers their functions, inits and systems
from otpt import calibration as _calibration  # noqa: F401
from otpt.methods import (  # noqa: F401
    aggregations,
    caches,
    coop,
    few_shot,
    fpp,
    gates,
    gaussians,
    inits,
    maple,
    multi_label,
    online,
    prompt_streams,
    text_shift,
    view_selection,
)
from otpt.methods.attributes import names_with_attributes, read_attributes
from otpt.methods.batch import Batch
from otpt.methods.examples import Examples
from otpt.methods.method import Method, Methods
from otpt.methods.names import (
    check_dataset_name,
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
from otpt.methods.path import PromptGroup
from otpt.methods.predictor import Predictor, stream
from otpt.methods.preparation import (
    Column,
    Group,
    Init,
    Setup,
    System,
    by_preparer,
    calibration_facts,
    check_fit,
    column_facts,
    columns,
    init_of,
    method_numbers,
    numbers_on,
    preparer_of,
    prompt_facts,
    refuse_features,
    register_init,
    register_system,
    text_state,
)
from otpt.methods.protocol import DEFAULT_METHOD, EXAMPLES_METHOD, MULTI_LABEL, Protocol, plain, refuse_no_methods
from otpt.methods.stages import KEPT_INIT, Output
from otpt.methods.task import Task, Texts
from otpt.plugins import load_plugin
from otpt.registry import adaptation, aggregation, calibrator, gate, objective

__all__ = [
    "DEFAULT_METHOD",
    "EXAMPLES_METHOD",
    "KEPT_INIT",
    "MULTI_LABEL",
    "Batch",
    "Column",
    "Examples",
    "Group",
    "Init",
    "Method",
    "Methods",
    "Output",
    "Predictor",
    "PromptGroup",
    "Protocol",
    "Setup",
    "System",
    "Task",
    "Texts",
    "adaptation",
    "aggregation",
    "by_preparer",
    "calibration_facts",
    "calibrator",
    "check_dataset_name",
    "check_fit",
    "column_facts",
    "columns",
    "compose",
    "field_methods",
    "field_names",
    "gate",
    "get_method",
    "get_methods",
    "init_of",
    "known_parts",
    "load_methods",
    "load_plugin",
    "method_numbers",
    "names_with_attributes",
    "numbers_on",
    "objective",
    "plain",
    "preparer_of",
    "prompt_facts",
    "published_methods",
    "published_names",
    "read_attributes",
    "refuse_features",
    "refuse_no_methods",
    "register_init",
    "register_methods",
    "register_system",
    "stream",
    "text_state",
]
