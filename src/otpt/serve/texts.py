"""Class lists with their text features, prepared once and kept: the ones used last, within a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from otpt.methods.predictor import Predictor


@dataclass(frozen=True)
class Prepared:
    """A predictor of one class list, and how many bytes it takes."""

    predictor: Predictor
    size: int


class TextCache:
    """Predictors by what decides them; those that were used last stay. For one thread, the engine's.

    Args:
        budget: bytes. A predictor that is larger by itself is used and not kept.
        watch: called with "hit" or "miss" at each look-up.
    """

    def __init__(self, budget: int, watch: Callable[[str], None] = lambda _: None) -> None:
        self.budget, self._watch = budget, watch
        self._kept: OrderedDict[Hashable, Prepared] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, backbone: Any, prepare: Callable[[], Predictor]) -> Prepared:
        """The predictor of this key; one that is not kept is prepared now."""
        found = self._kept.get(key)
        self._watch("miss" if found is None else "hit")
        if found is None:
            predictor = prepare()
            found = Prepared(predictor, predictor.graph_bytes + tensor_bytes(predictor, shared=backbone))
            self._keep(key, found)
        else:
            self._kept.move_to_end(key)
        return found

    def _keep(self, key: Hashable, found: Prepared) -> None:
        if found.size > self.budget:
            return
        while self.size + found.size > self.budget:
            _, oldest = self._kept.popitem(last=False)
            self.size -= oldest.size
        self._kept[key] = found
        self.size += found.size


def tensor_bytes(root: Any, *, shared: Any = None) -> int:
    """Bytes of all tensors that an object holds, each memory once, without those that ``shared`` holds too."""
    others = _storages(shared)
    return sum(size for place, size in _storages(root).items() if place not in others)


def _storages(root: Any) -> dict[int, int]:
    """Address → bytes of the memory of every tensor within an object."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(each, Module):
            waiting += [*each.parameters(), *each.buffers()]
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, (list, tuple, set, frozenset)):
            waiting += each
        elif type(each).__module__.startswith("otpt."):
            waiting += getattr(each, "__dict__", {}).values()
    return found
