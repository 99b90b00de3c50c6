"""Image towers without a formula: built on torch's meta device, where tensors have no memory, and counted."""

from __future__ import annotations

from typing import Any

from otpt.costs.architecture import Architecture
from otpt.costs.operations import Cost


def count_image_tower(model: Architecture, views: int) -> Cost:
    """``views`` views through the model's own tower: operations by PyTorch's counter, bytes of every operator."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import FlopCounterMode

    class Moved(TorchDispatchMode):
        """Bytes of the tensors that operators take and give; views of a tensor move nothing."""

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.bytes, self.operators = 0.0, 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = function(*args, **(kwargs or {}))
            if not function.is_view:
                flat = tree_leaves((args, kwargs, given))
                self.bytes += sum(each.nbytes for each in flat if isinstance(each, torch.Tensor))
                self.operators += 1
            return given

    visual = _visual(model)
    pixels = torch.empty(views, 3, model.vision.image_size, model.vision.image_size, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter, Moved() as moved:
        visual(pixels)
    by_kind = {str(kind): float(count) for kind, count in counter.get_flop_counts()["Global"].items()}
    convolutions = sum(count for kind, count in by_kind.items() if "convolution" in kind)
    weights = sum(each.numel() for each in visual.parameters())
    return Cost(sum(by_kind.values()) - convolutions, convolutions, moved.bytes, moved.operators, weights)


def _visual(model: Architecture) -> Any:
    import torch
    from open_clip.model import _build_vision_tower

    with torch.device("meta"):
        return _build_vision_tower(model.config["embed_dim"], model.config["vision_cfg"])
