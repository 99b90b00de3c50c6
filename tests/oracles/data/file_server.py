"""A local HTTP server of files that serves ranges, and interrupts, refuses or replaces answers on request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Files by path, and how their answers go wrong.

    Attributes:
        files: content by path, such as "/tiny/images.tar".
        requests: path and first byte of each request.
        cuts: numbers of bytes after which the next answers to a path end.
        answers: status and page instead of the file, by path.
        ranges: whether ranges are served.
        hold: if set, answers stop after half of the file until :attr:`release` is set.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, int]] = []
        self.cuts: dict[str, list[int]] = {}
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.ranges = True
        self.hold = False
        self.half_sent = threading.Event()
        self.release = threading.Event()
        self.address = ""

    def starts(self, path: str) -> list[int]:
        """First bytes of the requests for a file."""
        return [start for requested, start in self.requests if requested == path]

    @contextmanager
    def running(self) -> Iterator[FileServer]:
        """Serve until the block ends."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            self.release.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
                outer.requests.append((self.path, start))
                if self.path in outer.answers:
                    status, page = outer.answers[self.path]
                    self._send(status, page, {"Content-Type": "text/html"})
                elif self.path not in outer.files:
                    self._send(404, b"nothing here", {"Content-Type": "text/html"})
                else:
                    self._send_file(outer.files[self.path], start)

            def _send_file(self, data: bytes, start: int) -> None:
                if not start or not outer.ranges:
                    self._send(200, data, {})
                elif start >= len(data):
                    self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                else:
                    self._send(206, data[start:], {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"})

            def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                cuts = outer.cuts.get(self.path, [])
                sent = data[: cuts.pop(0)] if cuts else data
                if outer.hold:
                    self.wfile.write(sent[: len(sent) // 2])
                    self.wfile.flush()
                    outer.half_sent.set()
                    outer.release.wait(60)
                    sent = sent[len(sent) // 2 :]
                self.wfile.write(sent)
                self.close_connection = True

        return Handler
