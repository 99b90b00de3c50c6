from .frame import KEYS, results_frame
from .reading import Rows, read_rows
from .run import Run, WorkItem
from .scores import Average, Score, averages, left_out, score_run, write_metrics
from .shards import Shard

__all__ = [
    "KEYS",
    "Average",
    "Rows",
    "Run",
    "Score",
    "Shard",
    "WorkItem",
    "averages",
    "left_out",
    "read_rows",
    "results_frame",
    "score_run",
    "write_metrics",
]
