"""``python -m tests.processors``: the tests of equality on imitated processors, with 1, 2, 3 and 5 threads.

Rounding depends on the instructions that PyTorch, oneDNN and MKL find, and with them whether threads, batches or order
could change a bit. Three environment variables together imitate a processor with fewer instructions than this one. A
processor with more cannot be imitated: its row then shows what this machine has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
THREADS = (1, 2, 3, 5)
PROCESSORS = {
    "SSE4.2": ("default", "SSE41", "SSE4_2"),
    "AVX2": ("avx2", "AVX2", "AVX2"),
    "AVX-512": ("avx512", "AVX512_CORE", "AVX512"),
}
"""PyTorch's, oneDNN's and MKL's names of the instructions."""


def environment(processor: str, threads: int) -> dict[str, str]:
    """Variables of a process that imitates a processor and starts with so many threads."""
    torch_, onednn, mkl = PROCESSORS[processor]
    return {
        **os.environ,
        "ATEN_CPU_CAPABILITY": _available(torch_),
        "ONEDNN_MAX_CPU_ISA": onednn,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
        "OMP_NUM_THREADS": str(threads),
        "MKL_DYNAMIC": "FALSE",  # or there are never more threads than cores
        "OTPT_TEST_THREADS": str(threads),
    }


def _available(capability: str) -> str:
    """Bounded by what the machine has: unlike the other two libraries, PyTorch believes the variable and crashes."""
    if capability == "avx512" and not torch.cpu._is_avx512_supported():
        capability = "avx2"
    return "default" if capability == "avx2" and not torch.cpu._is_avx2_supported() else capability


def reported(processor: str) -> str:
    """The capability that PyTorch reports under the variables, for example ``AVX2``."""
    command = [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"]
    found = subprocess.run(command, env=environment(processor, 1), capture_output=True, text=True, check=True)
    return found.stdout.strip()


def run(processor: str, threads: int, options: list[str]) -> tuple[str, list[str]]:
    """One cell of the matrix, and the names of the tests that failed."""
    marked = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.equality" in path.read_text()]
    command = [sys.executable, "-m", "pytest", *marked, "-m", "equality", "-n", "auto", "--tb=short", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment(processor, threads), capture_output=True, text=True)
    print(done.stdout, file=sys.stderr, flush=True)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout[-300:])}
    wrong = counts.get("failed", 0) + counts.get("error", 0)
    if done.returncode not in (0, 1) or not counts:
        return f"exit {done.returncode}", [done.stderr.strip()[-500:]]
    failed = re.findall(r"^(?:FAILED|ERROR) (.+)$", done.stdout, re.MULTILINE)
    return f"{counts.get('passed', 0)}/{wrong}", [f"{processor}, {threads} threads: {name}" for name in failed]


def main() -> int:
    """Print the matrix; options are passed on to pytest, whose output goes to the standard error stream."""
    print("Tests of equality, passed/failed, by imitated processor and number of threads")
    print(f"{'processor':12}{'PyTorch reports':18}" + "".join(f"{threads:>10}" for threads in THREADS), flush=True)
    failed: list[str] = []
    for processor in PROCESSORS:
        print(f"{processor:12}{reported(processor):18}", end="", flush=True)
        for threads in THREADS:
            cell, names = run(processor, threads, sys.argv[1:])
            print(f"{cell:>10}", end="", flush=True)
            failed += names
        print(flush=True)
    print("\n".join(failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
