"""``python orphans.py FOLDER``: an evaluation in two processes that wait for their data; each leaves its number."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

from otpt.backbones import load_backbone
from otpt.data import Dataset
from otpt.evaluation import Job, ProcessEngine, Settings, Silent, run_job


def wait(folder: Path) -> Dataset:
    (folder / str(os.getpid())).touch()
    time.sleep(600)
    raise AssertionError("nobody ended this process")


if __name__ == "__main__":
    root = Path(sys.argv[1])
    model = partial(load_backbone, "random:ViT-B-32")
    run_job(Job(model, [partial(wait, root)], Settings(["zero-shot"]), root / "run"), ProcessEngine(2), Silent())
