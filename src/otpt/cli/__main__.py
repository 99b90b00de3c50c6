"""``python -m otpt.cli``."""

from __future__ import annotations

import sys

from otpt.cli import main

sys.exit(main())
