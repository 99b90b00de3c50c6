"""Puts ``tests/`` on the path, so that tests of any room can import the literal ``oracles``, and the repository, whose
``benchmarks`` and ``training`` are not part of the installed package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

# Several test processes side by side: one thread each, or they wait for each other. Before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
