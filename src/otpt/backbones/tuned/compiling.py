"""``torch.compile`` of an image tower, for chunks of exactly one shape.

On the CPU inductor writes C++ for one thread, as a chunk is computed by one thread. On CUDA kernels are Triton's and
run as CUDA graphs (``mode="reduce-overhead"``): the launches of a chunk are recorded once and replayed.

- **One graph, fixed shapes.** A tower that PyTorch cannot trace as a whole is refused. Otherwise parts of it would run
  as they are, without a word and with other rounding.
- **Code of its own.** PyTorch keeps at most eight variants of a function's code, and runs it uncompiled after that; so
  every tower gets a code object of its own.
- **One thread for all graphs.** The bookkeeping of CUDA graphs belongs to the thread that recorded them
  (pytorch/pytorch#123177), so chunks are recorded and replayed by one thread that lives as long as the tower.
- **Results are copied.** A graph always writes to the same memory: features of a chunk are copied before the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from otpt.errors import OtptError

_Out = TypeVar("_Out")

#: Relative difference allowed between tuned or compiled features and the original ones: rounding gives 1e-6, a mistake
#: about 1. In low precision the plain tower rounds after every operator, a compiled one at fewer places.
TOLERANCE, _LOW_TOLERANCE = 1e-3, 0.05


class CompiledTower:
    """A chunk (n, 3, S, S) → features (n, D), by a compiled ``tower``; compiled when it is first called.

    ``order`` is that of the pixels in memory.
    """

    def __init__(self, tower: nn.Module, device: torch.device, *, order: torch.memory_format) -> None:
        check_compile(device)
        self._graphs, self._order = device.type == "cuda", order
        how: dict[str, Any] = {"mode": "reduce-overhead"} if self._graphs else {"options": {"cpp.threads": 1}}
        self._compiled = torch.compile(_with_own_code(tower), fullgraph=True, dynamic=False, **how)
        self._thread = ThreadPoolExecutor(1, "otpt-graphs", lambda: torch.cuda.set_device(device))

    def __call__(self, pixels: Tensor) -> Tensor:
        # PyTorch would compile anew for other strides, and for tensors made outside of inference mode
        pixels = pixels.clone(memory_format=self._order)
        if not self._graphs:
            return self._compiled(pixels)
        torch.compiler.cudagraph_mark_step_begin()  # what the last chunk gave was copied: its memory may be reused
        return self._compiled(pixels).clone()

    def in_its_thread(self, work: Callable[[], _Out]) -> _Out:
        """``work()``, which calls this tower, where its CUDA graphs live; on the CPU in the caller's thread."""
        return self._thread.submit(work).result() if self._graphs else work()


def check_compile(device: torch.device) -> None:
    """``OtptError`` if towers on ``device`` cannot be compiled."""
    if device.type not in {"cpu", "cuda"}:
        raise OtptError(f"Image towers are compiled on 'cpu' and 'cuda', not on {device.type!r}; leave compile out.")


def check_agreement(encode: Callable[[Tensor], Tensor], plain: Tensor, chunk: Tensor, *, low: bool) -> None:
    """Compile now, by ``encode`` of a chunk (n, 3, S, S) of equal views; ``OtptError`` if that fails or differs.

    Args:
        plain: (n, D), the same views by the tower as it is.
        low: computed in low precision.
    """
    device, tolerance = plain.device.type, _LOW_TOLERANCE if low else TOLERANCE
    try:
        found = encode(chunk)
    except (RuntimeError, OSError, ImportError) as error:
        raise OtptError(
            f"The image tower cannot be compiled on {device!r}: {_cause(error)}. torch.compile needs a C++ compiler "
            "(g++ or clang++; the variable CXX names another), on 'cuda' also Triton; leave compile out if there is "
            "none."
        ) from error
    if not (found - plain).abs().max() <= tolerance * plain.abs().max():
        raise OtptError(
            f"The compiled image tower differs from the plain one by {float((found - plain).abs().max()):.1e}, where "
            f"features are up to {float(plain.abs().max()):.1e}; leave compile out."
        )
    if not (found == found[:1]).all():
        raise OtptError(
            "The compiled image tower gives a view other bits at other places of a chunk, so that results would depend "
            "on the batch; leave compile out."
        )


def _with_own_code(tower: nn.Module) -> Callable[[Tensor], Tensor]:
    def run(pixels: Tensor) -> Tensor:
        output = tower(pixels)
        feature: Tensor = output[0] if isinstance(output, tuple) else output
        return feature

    return FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)


def _cause(error: BaseException) -> str:
    """The first line of the innermost reason, which says more than the wrappers around it."""
    while (inner := error.__cause__ or getattr(error, "inner_exception", None)) is not None:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".:")
