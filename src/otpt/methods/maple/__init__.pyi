from .two_tower import TwoTowerSide

__all__ = [
    "TwoTowerSide",
]
