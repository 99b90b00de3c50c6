"""Tasks beyond classification: groups of classes, heat maps, export."""

from otpt.tasks.explain import HeatMap, explain
from otpt.tasks.export import export_onnx
from otpt.tasks.groups import Answer, Groups, back_off_threshold

__all__ = ["Answer", "Groups", "HeatMap", "back_off_threshold", "explain", "export_onnx"]
