"""Devices and precisions by name."""

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
"""Dtypes of the weights, of autocast around the image tower and around the text tower."""


def available_devices() -> list[str]:
    """Names of the devices this machine has: "cpu", "cuda", "cuda:1" …, "mps"."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += ["cuda"] + [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def pick_device(device: str | torch.device) -> torch.device:
    """The device of this name; "auto" takes CUDA, then MPS, then the CPU."""
    if not isinstance(device, (str, torch.device)):
        raise OtptError(f"device was given {device!r}; expected a name, such as 'cpu', 'cuda' or 'cuda:1'.")
    available, name = available_devices(), str(device)
    if name == "auto":
        return torch.device("cuda" if "cuda" in available else "mps" if "mps" in available else "cpu")
    if name in available:
        return torch.device(name)
    if name.split(":")[0] in {"cuda", "mps"}:
        raise OtptError(f"Device {name!r} is not available on this machine; available: {', '.join(available)}.")
    raise unknown("device", name, ["auto", *available])


def check_precision(name: str, device: torch.device) -> tuple[torch.dtype, torch.dtype | None, torch.dtype | None]:
    """Dtypes of a precision on a device; see :data:`PRECISIONS`."""
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    if name == "float64" and device.type == "mps":
        raise OtptError("Precision 'float64' does not exist on MPS; use the device 'cpu' for it.")
    return PRECISIONS[name]
