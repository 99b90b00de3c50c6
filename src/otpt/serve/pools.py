"""Blocking functions in pools of threads, called from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def run_in(pool: Executor, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function in a thread of the pool and return its result."""
    return await asyncio.get_running_loop().run_in_executor(pool, partial(function, *args, **kwargs))
