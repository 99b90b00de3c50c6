"""One run on disk: configuration, rows, locks, metrics. No model is needed to read it."""

from otpt.runs.config import CONFIG, ColumnConfig, DatasetConfig, ModelConfig, RunConfig, Scoring, folder_name
from otpt.runs.run import Run, WorkItem
from otpt.runs.scores import KEYS, averages, label_results, results_frame, score_run, short_table, write_metrics
from otpt.runs.shards import Rows, Shard, ShardRows

__all__ = [
    "CONFIG",
    "KEYS",
    "ColumnConfig",
    "DatasetConfig",
    "ModelConfig",
    "Rows",
    "Run",
    "RunConfig",
    "Scoring",
    "Shard",
    "ShardRows",
    "WorkItem",
    "averages",
    "folder_name",
    "label_results",
    "results_frame",
    "score_run",
    "short_table",
    "write_metrics",
]
