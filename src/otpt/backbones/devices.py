"""Devices and precisions."""

from __future__ import annotations

import torch

from otpt.errors import OtptError, unknown

PRECISIONS: dict[str, tuple[torch.dtype, torch.dtype | None, torch.dtype | None]] = {
    "float32": (torch.float32, None, None),
    "bf16": (torch.float32, torch.bfloat16, None),
    "fp16": (torch.float32, torch.float16, None),
    "bf16-both": (torch.float32, torch.bfloat16, torch.bfloat16),
    "fp16-both": (torch.float32, torch.float16, torch.float16),
    "float64": (torch.float64, None, None),
}
"""Dtypes of the weights, of autocast in the image tower and of autocast in the text tower, by precision."""


def available_devices() -> list[str]:
    """Return the names of the available devices: "cpu", "cuda", "cuda:1" …, "mps"."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += ["cuda"] + [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def pick_device(device: str | torch.device) -> torch.device:
    """Return the device of this name; "auto" prefers CUDA, then MPS, then the CPU."""
    available, name = available_devices(), str(device)
    if name == "auto":
        return torch.device("cuda" if "cuda" in available else "mps" if "mps" in available else "cpu")
    if name not in available:
        raise OtptError(f"Device {name!r} is not available on this machine; available: auto, {', '.join(available)}.")
    return torch.device(name)


def check_precision(name: str, device: torch.device) -> tuple[torch.dtype, torch.dtype | None, torch.dtype | None]:
    """Return the dtypes of a precision (see :data:`PRECISIONS`); raise if the device does not support it."""
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    if name == "float64" and device.type == "mps":
        raise OtptError("Precision 'float64' is not supported on MPS; use the device 'cpu'.")
    return PRECISIONS[name]
