"""The service under load, on the loopback: ``python -m benchmarks.service [--seconds 60] [--clients 100]``.

Three tables, all with ``pocket`` and ``o-tpt``, bounded in count and time (about 3 minutes on two quiet cores):

1. *Load*: so many clients at once for so long; errors, 429s, latencies, and the memory of the service after warm-up and
   at the end.
2. *Throughput* against ``Classifier.predict`` on the same images in the same run: images per second, and processor
   seconds per image, which a busy machine changes less; the two take turns. The clients run on the same cores.
3. *Class lists*: requests with 50 class lists in turn, and a text cache that holds some of them.

Needs httpx and psutil, which the extra dev has.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from benchmarks.engine import class_names, photograph

METHOD, CLASSES, LISTS = "o-tpt", 50, 50
_START = 300.0  # seconds that a service may take to be ready
_AT_ONCE: dict[str, Any] = {"clients": 16, "seconds": 600}
_HEADERS = {"Content-Type": "application/json"}


@dataclass
class Load:
    """What clients saw.

    Attributes:
        statuses: how often each status came; 0 for a connection that failed.
        seconds: of each request that was answered with 200.
        memory: bytes of the service, once a second.
        took: seconds in all.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    took: float = 0.0

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.statuses[200] / self.took

    def quantile(self, q: float) -> float:
        """Of the seconds of a request."""
        ordered = sorted(self.seconds)
        return ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else float("nan")

    @property
    def drift(self) -> float:
        """Memory of the last fifth of the time relative to the second fifth, which is after the warm-up."""
        fifth = max(len(self.memory) // 5, 1)
        early, late = self.memory[fifth : 2 * fifth] or self.memory, self.memory[-fifth:]
        return statistics.median(late) / statistics.median(early) - 1


@contextlib.contextmanager
def service(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """A service as a process of its own: its address and process."""
    command = [
        sys.executable,
        "-m",
        "otpt",
        "serve",
        "--port",
        "0",
        "--device",
        "cpu",
        "--log-level",
        "error",
        *options,
    ]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().rsplit(" ", 1)[-1].strip()
            _wait(address)
            yield address, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def _wait(address: str) -> None:
    end = time.monotonic() + _START
    while time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{address}/readyz", trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"The service at {address!r} was not ready within {_START:g} s.")


def bodies(count: int, labels: Sequence[str], **more: Any) -> list[bytes]:
    """Requests of different photographs."""
    found = []
    for seed in range(count):
        file = io.BytesIO()
        photograph(seed).save(file, "JPEG")
        image = base64.b64encode(file.getvalue()).decode("ascii")
        found.append(json.dumps({"image": image, "labels": list(labels), "method": METHOD, **more}).encode())
    return found


def run_load(
    address: str, process: psutil.Process, asked: Sequence[bytes], *, clients: int, seconds: float, most: int
) -> Load:
    """So many clients at once, each sending one request after the other, for so long or until all are sent."""
    found, end = Load(), time.monotonic() + seconds
    waiting = iter(range(most))

    async def client(session: httpx.AsyncClient) -> None:
        while time.monotonic() < end and (number := next(waiting, None)) is not None:
            begun = time.perf_counter()
            try:
                answer = await session.post("/v1/predict", content=asked[number % len(asked)], headers=_HEADERS)
            except httpx.HTTPError:
                found.statuses[0] += 1
                continue
            found.statuses[answer.status_code] += 1
            if answer.status_code == 200:
                found.seconds.append(time.perf_counter() - begun)
            elif answer.status_code == 429:
                await asyncio.sleep(min(float(answer.headers["Retry-After"]), 5.0))

    async def watch() -> None:
        while True:
            found.memory.append(process.memory_info().rss)
            await asyncio.sleep(1)

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
        async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits, trust_env=False) as session:
            watching = asyncio.create_task(watch())
            await asyncio.gather(*(client(session) for _ in range(clients)))
            watching.cancel()

    begun = time.perf_counter()
    asyncio.run(all_of_them())
    found.took = time.perf_counter() - begun
    return found


def gauge(address: str, name: str) -> float:
    """A number of ``/metrics``."""
    text = httpx.get(f"{address}/metrics", trust_env=False).text
    match = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(match.group(1)) if match else float("nan")


def show_load(clients: int, seconds: float) -> None:
    """The first table."""
    asked = bodies(20, class_names(CLASSES))
    with service() as (address, process):
        run_load(address, process, asked, clients=4, seconds=seconds, most=16)
        found = run_load(address, process, asked, clients=clients, seconds=seconds, most=10**9)
    others = {status: count for status, count in found.statuses.items() if status not in (200, 429)}
    print(f"Load: {clients} clients for {found.took:.0f} s, {METHOD}, {CLASSES} classes, 64 views")
    print(f"  answered {found.statuses[200]}, 429 {found.statuses[429]}, errors {sum(others.values())} {others or ''}")
    print(f"  {found.rate:.2f} images/s, p50 {found.quantile(0.5):.2f} s, p99 {found.quantile(0.99):.2f} s")
    print(
        f"  memory {found.memory[-1] / 2**20:.0f} MiB at the end, {100 * found.drift:+.1f} % since the warm-up: "
        f"{'held' if not others and abs(found.drift) <= 0.05 else 'MISSED'} (no error but 429, within 5 %)",
        flush=True,
    )


def show_throughput(images: int, rounds: int) -> None:
    """The second table."""
    from otpt.classifier import load

    labels = class_names(CLASSES)
    classifier = load("pocket", METHOD, device="cpu").set_classes(labels)
    given = [photograph(seed) for seed in range(images)]
    asked = bodies(images, labels)
    classifier.predict(given[:2])
    own = psutil.Process()
    rates: dict[str, list[float]] = {"predict": [], "service": []}
    seconds: dict[str, list[float]] = {name: [] for name in rates}
    with service() as (address, process):
        run_load(address, process, asked[:2], clients=2, seconds=600, most=2)
        for _ in range(rounds):
            ways: tuple[tuple[str, psutil.Process, Callable[[], float]], ...] = (
                ("predict", own, lambda: images / timed(lambda: classifier.predict(given))),
                ("service", process, lambda: run_load(address, process, asked, **_AT_ONCE, most=images).rate),
            )
            for name, at, run in ways:
                before = processor_seconds(at)
                rates[name].append(run())
                seconds[name].append((processor_seconds(at) - before) / images)
    print(f"Throughput: {images} images, {rounds} rounds")
    for name in rates:
        median = statistics.median(seconds[name])
        relative = statistics.median(a / b for a, b in zip(seconds[name], seconds["predict"], strict=True))
        verdict = f": {'held' if relative <= 1.05 else 'MISSED'} (at most 1.05)" if name == "service" else ""
        print(
            f"  {name}: {max(rates[name]):.2f} images/s at best; {median:.3f} processor seconds per image, "
            f"ratio {relative:.3f} to predict's in the same round (median){verdict}",
            flush=True,
        )


def timed(work: Callable[[], object]) -> float:
    """Seconds of a call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def processor_seconds(process: psutil.Process) -> float:
    """Of all threads of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def show_lists(requests: int, clients: int, budget: float) -> None:
    """The third table."""
    lists = [[f"{name} {i}" for name in class_names(CLASSES)] for i in range(LISTS)]
    asked = [bodies(1, own, method="zero-shot", views=1)[0] for own in lists]
    with service("--text-cache", str(budget)) as (address, process):
        sizes, statuses, done = [], Counter[int](), 0
        before = 0
        while done < requests:
            part = min(max(requests // 10, 1), requests - done)
            found = run_load(address, process, asked, clients=clients, seconds=600, most=part)
            statuses += found.statuses
            sizes.append(gauge(address, "otpt_text_cache_bytes"))
            before = before or process.memory_info().rss
            done += part
        after = process.memory_info().rss
    within = max(sizes) <= budget * 2**20
    print(f"Class lists: {done} requests with {LISTS} class lists of {CLASSES}, statuses {dict(statuses)}")
    print(
        f"  largest cache {max(sizes) / 2**20:.2f} MiB of {budget:g}: {'within' if within else 'ABOVE'} the budget, ",
        end="",
    )
    print(f"memory {100 * (after / before - 1):+.1f} % since the first tenth", flush=True)


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of the load (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=100, help="at once (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=2000, help="with 50 class lists (default: %(default)s)")
    parser.add_argument("--images", type=int, default=48, help="of a round of the throughput (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of the throughput (default: %(default)s)")
    parser.add_argument("--only", choices=["load", "throughput", "lists"], help="one of the tables")
    parser.add_argument("--budget", type=float, default=2, help="MiB of the text cache (default: %(default)s)")
    options = parser.parse_args()
    if options.only in (None, "load"):
        show_load(options.clients, options.seconds)
    if options.only in (None, "throughput"):
        show_throughput(options.images, options.rounds)
    if options.only in (None, "lists"):
        show_lists(options.requests, min(options.clients, 32), options.budget)


if __name__ == "__main__":
    main()
