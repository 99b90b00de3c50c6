from .cache import CacheInfo, FeatureCache, default_cache_folder
from .engines import Engine, Job, LocalEngine, ProcessEngine
from .evaluation import Result, evaluate, run_job
from .evaluator import Evaluator, Judged
from .parts import Part
from .progress import LogProgress, Reporter, Silent, TerminalProgress, duration
from .run import Run, WorkItem
from .scoring import Average, Score, averages, left_out, score_run, write_metrics
from .settings import Settings
from .sweeps import IMAGENET_80, parse_values, read_templates, sweep_method, template_prompt

__all__ = [
    "IMAGENET_80",
    "Average",
    "CacheInfo",
    "Engine",
    "Evaluator",
    "FeatureCache",
    "Job",
    "Judged",
    "LocalEngine",
    "LogProgress",
    "Part",
    "ProcessEngine",
    "Reporter",
    "Result",
    "Run",
    "Score",
    "Settings",
    "Silent",
    "TerminalProgress",
    "WorkItem",
    "averages",
    "default_cache_folder",
    "duration",
    "evaluate",
    "left_out",
    "parse_values",
    "read_templates",
    "run_job",
    "score_run",
    "sweep_method",
    "template_prompt",
    "write_metrics",
]
