from .choice import Choice, choose_map, stratified_folds
from .registry import DEFAULT, LEAST_LABELS, MAPS, CalibrationMap, fit_map

__all__ = [
    "DEFAULT",
    "LEAST_LABELS",
    "MAPS",
    "CalibrationMap",
    "Choice",
    "choose_map",
    "fit_map",
    "stratified_folds",
]
