"""How much memory a process takes: weights, the graph of the text features, activations, libraries."""

from __future__ import annotations

from dataclasses import dataclass

from otpt.costs.architecture import Architecture, ResNet, VisionTransformer
from otpt.costs.language import Texts, graph_bytes, text_parameters
from otpt.costs.operations import FLOAT
from otpt.costs.vision import CHUNK, one_chunk
from otpt.prompts import MEMORY_BUDGET

LIBRARIES = {"cpu": 0.9e9, "gpu": 0.8e9}
"""Bytes of the interpreter, PyTorch and what loading leaves (CPU: measured, docs/performance.md), or of a CUDA context
and its libraries on the device (an assumption)."""
CONTEXTS = {"cpu": 1, "gpu": 8}
"""Contexts that go through the text tower together; each has a graph of its own."""


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak, on the device that computes."""

    libraries: float
    weights: float
    graph: float
    activations: float

    @property
    def bytes(self) -> float:
        """All together."""
        return self.libraries + self.weights + self.graph + self.activations


def memory_of(
    model: Architecture, texts: Texts, *, kind: str = "cpu", threads: int = 1, tunes: bool = True, half: bool = False,
    budget: float = MEMORY_BUDGET,
) -> Memory:  # fmt: skip
    """Of one process.

    Args:
        kind: "cpu", or "gpu", which has larger chunks and eight contexts at a time.
        threads: chunks that are encoded at a time on a CPU.
        tunes: some method tunes a context, so that a graph is kept, or computed in pieces that fit ``budget``.
        half: activations of the image tower in two bytes.
    """
    image, text = one_chunk(model, 1).weights, text_parameters(model.text, model.features)
    packed = image if kind == "cpu" else 0.0  # the image tower's weights once more, in the order of the kernels
    graph = min(CONTEXTS[kind] * graph_bytes(model.text, texts), budget) if tunes else 0.0
    live = CHUNK[kind] * (threads if kind == "cpu" else 1) * _live(model)
    return Memory(LIBRARIES[kind], FLOAT * (image + text + packed), graph, (0.5 if half else 1.0) * FLOAT * live)


def _live(model: Architecture) -> float:
    """Numbers that are alive at a time, per view: the widest place of the tower."""
    tower = model.vision
    if isinstance(tower, VisionTransformer):
        # the residual stream, its norm, queries, keys and values; or the hidden rows before and after the activation
        return tower.tokens * (2.0 * tower.width + max(4.0 * tower.width, 2.0 * tower.hidden))
    if isinstance(tower, ResNet):
        return 3.0 * tower.width * (tower.image_size / 2) ** 2
    return 64.0 * tower.image_size**2  # as wide as a stem usually is
