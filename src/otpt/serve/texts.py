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
        self._backbones: dict[int, Held] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, backbone: Any, prepare: Callable[[], Predictor]) -> Prepared:
        """The predictor of this key; one that is not kept is prepared now."""
        found = self._kept.get(key)
        self._watch("miss" if found is None else "hit")
        if found is None:
            predictor = prepare()
            if id(backbone) not in self._backbones:
                self._backbones[id(backbone)] = held(backbone)
            own = held(predictor, beside=self._backbones[id(backbone)])
            found = Prepared(predictor, predictor.graph_bytes + own.bytes)
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


@dataclass(frozen=True)
class Held:
    """What can be reached from an object: every object by its identity, kept alive so that it stays unique; and address
    → bytes of the memory of every tensor.
    """

    objects: dict[int, Any]
    storages: dict[int, int]

    @property
    def bytes(self) -> int:
        """Of all tensors, each memory once."""
        return sum(self.storages.values())


_NOTHING = Held({}, {})


def held(root: Any, *, beside: Held = _NOTHING) -> Held:
    """What an object holds, without what is held ``beside`` it: a backbone's vocabulary is large, and walked once."""
    found = Held({}, {})
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (str, int, float)) or id(each) in found.objects or id(each) in beside.objects:
            continue
        found.objects[id(each)] = each
        if isinstance(each, Tensor):
            storage = each.untyped_storage()
            if storage.data_ptr() not in beside.storages:
                found.storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(each, Module):
            waiting += [*each.parameters(), *each.buffers()]
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, (list, tuple, set, frozenset)):
            waiting += each
        elif type(each).__module__.startswith("otpt."):
            waiting += getattr(each, "__dict__", {}).values()
    return found
