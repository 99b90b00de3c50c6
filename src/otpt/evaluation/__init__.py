"""Resumable evaluation of all methods in one pass, with every row stored.

    from otpt.data import load_dataset
    from otpt.evaluation import evaluate

    result = evaluate("emoji/food", "pocket", methods=["zero-shot", "o-tpt"], out="runs/food")
    result = evaluate(load_dataset("dtd", root="data"), "ViT-B-16/openai", out="runs/dtd")

The same call resumes a stopped run, and computes only missing rows.
"""

from otpt.evaluation.calibrating import calibrate_run
from otpt.evaluation.evaluation import Execution, Result, evaluate
from otpt.evaluation.evaluator import Evaluator
from otpt.evaluation.request import Evaluation
from otpt.evaluation.sweeps import sweep_method
from otpt.evaluation.systems import EvaluationSystem
from otpt.progress import Progress, duration

__all__ = [
    "Evaluation",
    "EvaluationSystem",
    "Evaluator",
    "Execution",
    "Progress",
    "Result",
    "calibrate_run",
    "duration",
    "evaluate",
    "sweep_method",
]
