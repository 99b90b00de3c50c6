"""The service in a process of its own, which is ended and started again if it does not stop what it should.

The process of the command receives and answers requests (:class:`Supervisor`). A second one has the models and computes
(:func:`run_service`); it says twice a second that it is alive, whether it is ready, and for how long work goes on that
should have stopped. It is ended if it is silent, or if such work goes on: requests in progress get 503 with
``Retry-After``, new ones wait for the new process, as long as they may.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import NamedTuple, Self, cast

import torch
from prometheus_client import Counter, generate_latest

from otpt.errors import OtptError
from otpt.serve.config import ServiceConfig
from otpt.serve.errors import RequestError, busy, unavailable
from otpt.serve.metrics import Metrics
from otpt.serve.schemas import CompareAnswer, ImageRequest, Information
from otpt.serve.service import Service

GRACE = 10.0
"""Seconds for which work may go on after it should have stopped, before its process is ended."""
SILENCE = 20.0
"""Seconds without a sign of life after which the process is ended."""
_BEAT = 0.5  # seconds between signs of life
_FRESH = 5.0  # seconds for which a sign of life says that the service is ready
_MARGIN = 2.0  # seconds that the process has to answer that it was not in time
_CLOSING = 10.0  # seconds for the process to end
_WITHIN = 2.0  # seconds to wait for counters
_LONGEST_PAUSE = 30.0  # seconds between attempts to start
_log = logging.getLogger(__name__)


class Beat(NamedTuple):
    """Sign of life of the process.

    Attributes:
        ready: whether every model has predicted once and no image waits too long.
        overrun: seconds for which work goes on that should have stopped.
    """

    ready: bool
    overrun: float


class _Call(NamedTuple):
    """Call of a method of the service; ``name`` is None to cancel the call of this number."""

    number: int
    name: str | None = None
    arguments: tuple[object, ...] = ()


class _Result(NamedTuple):
    """Result of a call, or the error that it raised."""

    number: int
    value: object


class Supervisor:
    """Front of a service in another process; a context manager, which starts and ends it.

    Args:
        config: configuration of the service.

    Raises:
        OtptError: on entering, if the service cannot be made from the configuration.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.limits = config.limits
        self.metrics = Metrics()
        words = "processes of the service that were started because one ended"
        self._restarts = Counter("otpt_restarts", words, registry=self.metrics.registry)
        self._config = config
        self._threads = torch.get_num_threads()
        self._worker: _Worker | None = None
        self._information: Information | None = None
        self._waiting = 0
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="otpt-watch", daemon=True)

    def __enter__(self) -> Self:
        self._worker = self._started()
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Do nothing: the process is running."""

    def close(self) -> None:
        """End the process; called when no request is in progress."""
        if not self._closing.is_set():
            self._closing.set()
            self._watcher.join()
            if self._worker is not None:
                self._worker.close()

    async def answer(self, request: ImageRequest, images: Sequence[str | bytes], client: str = "") -> CompareAnswer:
        """See :meth:`Service.answer`."""
        async with asyncio.timeout(self.limits.seconds + _MARGIN):
            worker = await self._available()
            return cast(CompareAnswer, await worker.call("answer", request, images, client))

    async def information(self) -> Information:
        """See :meth:`Service.information`."""
        if self._information is None:
            async with asyncio.timeout(self.limits.seconds):
                worker = await self._available()
                self._information = cast(Information, await worker.call("information"))
        return self._information

    async def exposition(self) -> bytes:
        """Return the counters of this process and, if it answers, of the other one."""
        counters = generate_latest(self.metrics.registry)
        worker = self._worker
        if worker is not None and worker.is_alive:
            with suppress(TimeoutError, RequestError):
                counters += cast(bytes, await asyncio.wait_for(worker.call("engine_exposition"), _WITHIN))
        return counters

    async def ready(self) -> bool:
        """Return whether the process is ready, and has said so lately."""
        worker = self._worker
        return worker is not None and worker.is_ready and not self._closing.is_set()

    async def _available(self) -> _Worker:
        """Wait for a process that answers; as many requests wait as may be in the queue."""
        if self._worker is None and self._waiting >= self.limits.queue:
            raise busy(5, "The service starts again, and many requests wait for it.")
        self._waiting += 1
        try:
            while (worker := self._worker) is None or not worker.is_alive:
                if self._closing.is_set():
                    raise unavailable("closing", "The service is shutting down.")
                await asyncio.sleep(0.05)
        finally:
            self._waiting -= 1
        return worker

    def _started(self) -> _Worker:
        worker = _Worker(self._config, self._threads)
        try:
            worker.wait_until_started(self._closing)
        except BaseException:
            worker.kill()
            raise
        return worker

    def _watch(self) -> None:
        """End the process if it does not do what it should, and start another one."""
        pause = 1.0
        while not self._closing.wait(_BEAT / 2):
            if self._worker is not None:
                reason = self._worker.reason_to_end()
                if reason is None:
                    continue
                _log.error("the process of the service is ended: %s", reason)
                worker, self._worker = self._worker, None
                worker.kill()
            self._restarts.inc()
            try:
                self._worker = self._started()
                pause = 1.0
            except Exception as error:
                _log.exception("the process of the service did not start: %s", error)
                self._closing.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)


class _Worker:
    """One process of the service, and the threads that write to it and read from it."""

    def __init__(self, config: ServiceConfig, threads: int) -> None:
        context = get_context("spawn")  # a fork would copy the locks of other threads
        self._connection, theirs = context.Pipe()
        level = logging.getLogger(__package__).getEffectiveLevel()
        arguments = (config, threads, theirs, level)
        self._process: SpawnProcess = context.Process(
            target=run_service, args=arguments, name="otpt-service", daemon=True
        )
        self._process.start()
        theirs.close()
        self._started: Future[None] = Future()
        self._calls: dict[int, Future[object]] = {}
        self._lock = threading.Lock()
        self._number = 0
        self._beat, self._heard = Beat(False, 0.0), time.monotonic()
        self._outbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        for work in (self._read, self._write):
            threading.Thread(target=work, name="otpt-service-pipe", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether the process runs, is ready and was so lately, and no work overruns."""
        is_fresh = time.monotonic() - self._heard < _FRESH
        return self.is_alive and is_fresh and self._beat.ready and self._beat.overrun < _BEAT * 2

    def wait_until_started(self, stop: threading.Event) -> None:
        """Wait until the models are loaded; raise what loading them raised."""
        while not stop.is_set():
            with suppress(TimeoutError):
                return self._started.result(0.1)
        raise OtptError("The service is shutting down.")

    def reason_to_end(self) -> str | None:
        """Return why the process has to be replaced, or None."""
        silence = time.monotonic() - self._heard
        if not self.is_alive:
            return f"it ended with code {self._process.exitcode}"
        if silence > SILENCE:
            return f"it has been silent for {silence:.0f} s"
        if self._beat.overrun > GRACE:
            return f"work has gone on for {self._beat.overrun:.0f} s after it should have stopped"
        return None

    async def call(self, name: str, *arguments: object) -> object:
        """Call a method of the service; the call is cancelled with the caller."""
        future: Future[object] = Future()
        with self._lock:
            self._number += 1
            number = self._number
            self._calls[number] = future
        self._outbox.put(_Call(number, name, arguments))
        if not self.is_alive:  # and nobody reads any more
            self._fail_all()
        try:
            value = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._outbox.put(_Call(number))
            raise
        finally:
            with self._lock:
                self._calls.pop(number, None)
        if isinstance(value, Exception):
            raise value
        return value

    def kill(self) -> None:
        """End the process at once; calls in progress get 503."""
        self._process.kill()
        self._process.join()
        self._outbox.put(None)
        self._fail_all()

    def close(self) -> None:
        """Let the process end, and end it if it does not."""
        self._outbox.put(None)
        self._process.join(_CLOSING)
        self.kill()

    def _write(self) -> None:
        """Write calls until there are no more; in a thread, because a process that hangs reads nothing."""
        with suppress(OSError):
            while (call := self._outbox.get()) is not None:
                self._connection.send(call)
            self._connection.send(None)

    def _read(self) -> None:
        """Read results and signs of life until the process ends."""
        with suppress(EOFError, OSError):
            while True:
                message = self._connection.recv()
                self._heard = time.monotonic()
                if isinstance(message, Beat):
                    self._beat = message
                    if not self._started.done():
                        self._started.set_result(None)
                elif isinstance(message, _Result):
                    with self._lock:
                        future = self._calls.get(message.number)
                    if future is not None and future.set_running_or_notify_cancel():
                        future.set_result(message.value)
                elif isinstance(message, Exception):
                    self._started.set_exception(message)
        if not self._started.done():
            self._started.set_exception(OtptError("The process of the service ended while it started; see its log."))
        self._fail_all()

    def _fail_all(self) -> None:
        """Give 503 to all calls in progress."""
        with self._lock:
            futures, self._calls = list(self._calls.values()), {}
        for future in futures:
            if future.set_running_or_notify_cancel():
                words = "The process that computes was ended and starts again."
                future.set_result(unavailable("restarting", words))


# ---- in the process -------------------------------------------------------------------------------------------------


def run_service(config: ServiceConfig, threads: int, connection: Connection, level: int) -> None:
    """Answer the calls of the parent process until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # of a terminal or a group: the parent ends first
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=level)
    torch.set_num_threads(threads)
    calls = _Calls(connection)
    beating = threading.Thread(target=calls.beat, name="otpt-beat", daemon=True)
    try:
        service = Service.from_config(config)
    except Exception as error:
        connection.send(error if isinstance(error, OtptError) else OtptError(f"The service failed: {error!r}"))
        return
    service.start()
    calls.service = service
    beating.start()
    asyncio.run(calls.answer())


class _Calls:
    """Calls of the parent process."""

    service: Service

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def beat(self) -> None:
        """Send signs of life."""
        with suppress(OSError):
            while True:
                self._send(Beat(self.service.is_ready, self.service.overrun()))
                time.sleep(_BEAT)

    async def answer(self) -> None:
        """Answer calls until the parent process ends, or says that there are no more."""
        loop = asyncio.get_running_loop()
        calls: asyncio.Queue[_Call | None] = asyncio.Queue()

        def read() -> None:
            with suppress(EOFError, OSError):
                while (call := self._connection.recv()) is not None:
                    loop.call_soon_threadsafe(calls.put_nowait, call)
                loop.call_soon_threadsafe(calls.put_nowait, None)
                return
            os._exit(0)  # the parent has ended: nobody waits for an answer

        threading.Thread(target=read, name="otpt-calls", daemon=True).start()
        while (call := await calls.get()) is not None:
            if call.name is None:
                if task := self._tasks.get(call.number):
                    task.cancel()
            else:
                self._tasks[call.number] = asyncio.create_task(self._answer(call))
        self.service.close()
        os._exit(0)  # threads of a library that still run would abort an orderly end

    async def _answer(self, call: _Call) -> None:
        assert call.name is not None
        value: object
        try:
            value = await getattr(self.service, call.name)(*call.arguments)
        except asyncio.CancelledError:
            return
        except (RequestError, OtptError, TimeoutError) as error:
            value = error
        except Exception as error:
            _log.exception("a request failed")
            value = RuntimeError(repr(error))
        finally:
            self._tasks.pop(call.number, None)
        with suppress(OSError):
            await asyncio.to_thread(self._send, _Result(call.number, value))

    def _send(self, message: object) -> None:
        with self._sending:
            self._connection.send(message)
