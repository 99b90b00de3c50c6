"""``python -m otpt``: the command."""

from __future__ import annotations

import sys

from otpt.cli import main

sys.exit(main())
