"""Puts this folder on the path, for its bench; no model is needed here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
