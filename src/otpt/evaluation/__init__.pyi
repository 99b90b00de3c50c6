from .calibrating import calibrate_run
from .engines import Engine, Job, LocalEngine, ProcessEngine
from .evaluation import Result, evaluate, run_job
from .evaluator import Evaluator, Predicted
from .progress import LogProgress, Reporter, Silent, TerminalProgress
from .settings import Settings
from .spans import duration
from .sweeps import IMAGENET_80, parse_values, read_templates, sweep_method, template_prompt

__all__ = [
    "IMAGENET_80",
    "Engine",
    "Evaluator",
    "Job",
    "LocalEngine",
    "LogProgress",
    "Predicted",
    "ProcessEngine",
    "Reporter",
    "Result",
    "Settings",
    "Silent",
    "TerminalProgress",
    "calibrate_run",
    "duration",
    "evaluate",
    "parse_values",
    "read_templates",
    "run_job",
    "sweep_method",
    "template_prompt",
]
