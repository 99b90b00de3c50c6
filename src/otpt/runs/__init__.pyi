from .reading import Rows, read_rows
from .run import Run, WorkItem
from .scores import Average, Score, averages, left_out, score_run, write_metrics
from .shards import Shard

__all__ = [
    "Average",
    "Rows",
    "Run",
    "Score",
    "Shard",
    "WorkItem",
    "averages",
    "left_out",
    "read_rows",
    "score_run",
    "write_metrics",
]
