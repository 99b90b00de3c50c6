"""Evaluation at scale: all methods in one pass, every row kept, nothing lost when it is stopped.

from otpt.data import load_dataset
from otpt.evaluation import FeatureCache, Settings, evaluate

result = evaluate(load_dataset("dtd", root="data"), otpt.load_backbone("ViT-B-16/openai"),
                  Settings(methods=["zero-shot", "o-tpt"]), out="runs/dtd", cache=FeatureCache())
"""

from otpt.evaluation.cache import CacheInfo, FeatureCache, default_cache_folder
from otpt.evaluation.engines import Engine, Job, LocalEngine, ProcessEngine
from otpt.evaluation.evaluation import Result, evaluate, run_job
from otpt.evaluation.evaluator import Evaluator, Judged
from otpt.evaluation.parts import Part
from otpt.evaluation.progress import LogProgress, Reporter, Silent, TerminalProgress, duration
from otpt.evaluation.run import Run, WorkItem
from otpt.evaluation.scoring import Average, Score, averages, left_out, score_run, write_metrics
from otpt.evaluation.settings import Settings
from otpt.evaluation.sweeps import IMAGENET_80, parse_values, read_templates, sweep_method, template_prompt

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
