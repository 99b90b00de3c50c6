"""Predictors of class lists: their text features, prepared by threads and cached."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from weakref import WeakKeyDictionary

from otpt.backbones import Backbone
from otpt.methods import Predictor, check_fit
from otpt.serve.admission import Turns
from otpt.serve.metrics import Metrics
from otpt.serve.pools import run_in
from otpt.serve.queries import Query, TextsKey
from otpt.serve.watch import Watch
from otpt.threads import Cancelled, check_cancelled, make_pool

_OF_FEW = 4  # part of the budget for short lists: a quarter
_FEW_TEXTS = 256  # lists up to this length do not wait for longer ones


class TextCache:
    """Predictors of class lists, the most recently used within a budget of bytes.

    The budget bounds the lists that requests use, too: while they exceed it, no further list is prepared. A predictor
    that is larger by itself is used and not cached.
    """

    def __init__(self, budget: int, watch: Watch, metrics: Metrics) -> None:
        self._budget = budget
        self._watch = watch
        self._metrics = metrics
        self._cached: OrderedDict[TextsKey, Predictor] = OrderedDict()
        self._alive: WeakKeyDictionary[Predictor, int] = WeakKeyDictionary()  # with its bytes
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of the cached predictors."""
        with self._lock:
            return sum(self._alive[predictor] for predictor in self._cached.values())

    def get(self, key: TextsKey) -> Predictor | None:
        """Return the cached predictor, or None."""
        with self._lock:
            predictor = self._cached.get(key)
            if predictor is not None:
                self._cached.move_to_end(key)
        self._metrics.texts.labels("miss" if predictor is None else "hit").inc()
        return predictor

    def prepare(
        self, key: TextsKey, make: Callable[[], Predictor], stop: Callable[[], bool] = lambda: False
    ) -> Predictor:
        """Make a predictor, unless another thread just did; raise ``Cancelled`` once ``stop()`` is true."""
        while self._shrink() > self._budget:  # requests use them
            if stop():
                raise Cancelled
            time.sleep(0.02)
        with self._lock:
            predictor = self._cached.get(key)
        if predictor is not None:
            return predictor
        with self._watch.cancellable(stop):
            check_cancelled()
            predictor = make()
        size = predictor.nbytes
        self._shrink(size)
        with self._lock:
            self._alive[predictor] = size
            if size <= self._budget:
                self._cached[key] = predictor
        return predictor

    def _shrink(self, size: int = 0) -> int:
        """Evict predictors until ``size`` more bytes fit; return the bytes of all that are still in memory."""
        with self._lock:
            while self._cached and sum(self._alive.values()) + size > self._budget:
                self._cached.popitem(last=False)
            return sum(self._alive.values())


class TextPreparer:
    """Threads that compute text features; long lists have their own, so that short ones do not wait.

    Args:
        models: backbones by name.
        budget: bytes of the cache.
        turns: limits of each client; one list of each length at a time.
        watch: registers work that should stop.
        metrics: counters of the cache.
    """

    def __init__(
        self, models: Mapping[str, Backbone], budget: int, turns: Turns, watch: Watch, metrics: Metrics
    ) -> None:
        self._models = models
        self._turns = turns
        self._few_cached = TextCache(budget // _OF_FEW, watch, metrics)  # which long lists do not evict
        self._many_cached = TextCache(budget - budget // _OF_FEW, watch, metrics)
        self.few, self.many = make_pool(1, "otpt-texts"), make_pool(1, "otpt-many-texts")

    @property
    def size(self) -> int:
        """Bytes of the cached predictors."""
        return self._few_cached.size + self._many_cached.size

    def cache_of(self, query: Query) -> TextCache:
        """Return the cache for lists of this length."""
        return self._many_cached if query.prepared_texts > _FEW_TEXTS else self._few_cached

    async def prepare(self, query: Query, client: str, stop: Callable[[], bool]) -> Predictor:
        """Return the predictor of a query; ``stop`` says whether it is no longer needed."""
        cache = self.cache_of(query)
        predictor = cache.get(query.key)
        if predictor is not None:
            return predictor
        pool = self.few if cache is self._few_cached else self.many
        async with self._turns.wait(f"texts {pool is self.many}", client, 1):
            return await run_in(pool, cache.prepare, query.key, partial(self.make, query.key), stop)

    def prepare_now(self, query: Query) -> Predictor:
        """Return the predictor of a query, in the calling thread."""
        return self.cache_of(query).prepare(query.key, partial(self.make, query.key))

    def make(self, key: TextsKey) -> Predictor:
        """Return a new predictor."""
        backbone = self._models[key.model]
        check_fit(backbone, key.task, key.protocol, key.protocol.methods)
        return Predictor(backbone, [key.task], key.protocol, key.rejection)

    def close(self) -> None:
        """Stop the threads."""
        for pool in (self.few, self.many):
            pool.shutdown(wait=False, cancel_futures=True)
