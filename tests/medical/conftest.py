"""FPT's frozen ViT in small."""

from __future__ import annotations

from oracles.data.medical_bench import frozen, vit

__all__ = ["frozen", "vit"]
