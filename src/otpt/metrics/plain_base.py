"""What accumulating metrics need of torchmetrics, for those who do not have it."""

from __future__ import annotations

from typing import Any


class PlainBase:
    """Lists of batches by name, which are reset and merged; the same interface as ``torchmetrics.Metric``."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def add_state(self, name: str, default: list[Any], dist_reduce_fx: str) -> None:
        """A list that batches are added to."""
        self._names.append(name)
        setattr(self, name, list(default))

    def reset(self) -> None:
        """Forget all batches."""
        for name in self._names:
            setattr(self, name, [])

    def merge_state(self, incoming: Any) -> None:
        """Take over the batches of another one."""
        for name in self._names:
            setattr(self, name, [*getattr(incoming, name), *getattr(self, name)])

    def update(self, preds: Any, target: Any) -> None:
        """Add a batch."""
        raise NotImplementedError

    def compute(self) -> Any:
        """The metric of all batches so far."""
        raise NotImplementedError

    def __call__(self, preds: Any, target: Any) -> Any:
        """Add a batch; the metric of this batch alone."""
        before = {name: getattr(self, name) for name in self._names}
        self.reset()
        try:
            self.update(preds, target)
            return self.compute()
        finally:  # a batch that is refused must not take the earlier ones with it
            for name, batches in before.items():
                setattr(self, name, [*batches, *getattr(self, name)])
