"""Two processes of one thread each learn twice as fast as one of two threads: small convolutions do not share well.

Each process takes its share of every batch; gradients and counts are summed in one message.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

# glibc gives large blocks back and asks for them again, page by page, at every layer; kept, and in huge pages, an epoch
# takes a tenth less. Read when a process starts.
MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"


def rank() -> int:
    """Number of this process; 0 where there is only one."""
    return int(dist.get_rank()) if dist.is_initialized() else 0


def processes() -> int:
    """Number of processes that learn together."""
    return int(dist.get_world_size()) if dist.is_initialized() else 1


def sum_in_place(values: Sequence[Tensor]) -> None:
    """Every tensor becomes its sum over the processes."""
    if processes() == 1:
        return
    flat = torch.cat([value.flatten() for value in values])
    dist.all_reduce(flat)
    for value, part in zip(values, flat.split([value.numel() for value in values]), strict=True):
        value.copy_(part.view_as(value))


def run_in_processes(count: int, work: Callable[..., None], *arguments: Any) -> None:
    """``work(*arguments)`` in ``count`` processes of one thread each, or here if it is one."""
    if count == 1:
        work(*arguments)
        return
    os.environ.setdefault("GLIBC_TUNABLES", MALLOC)
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(  # type: ignore[no-untyped-call]
            _joined, args=(count, Path(folder) / "meeting", work, arguments), nprocs=count, start_method="spawn"
        )


def _joined(number: int, count: int, meeting: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=count)
    try:
        work(*arguments)
    finally:
        dist.destroy_process_group()
