"""A real Chromium without a window, driven through a pipe: nothing but the browser is needed, no port and no driver."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

_SECONDS = 120  # a watchdog, not a measure
_QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")

# The browser expects the pipe there. Copies first: the numbers given may be 3 and 4 already, crossed.
_AS_THREE_AND_FOUR = """
import os, sys
ends = [os.dup(int(each)) for each in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
    os.set_inheritable(place, True)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page. ``console`` collects what goes to its console, ``requests`` the addresses it asks for.

    Args:
        profile: an empty folder for the browser's own files.
        width: of the window in pixels.
        dark: whether the system is said to prefer dark colours.
    """

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self._numbers, self._waiting, self._loaded = itertools.count(1), b"", False
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _AS_THREE_AND_FOUR, str(theirs_read), str(theirs_write),
             str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *_QUIET,
             f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            pass_fds=(theirs_read, theirs_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_read)
        os.close(theirs_write)
        self._read, self._write = ours_read, ours_write
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._send("Browser.close")  # in order, so that none of its processes is left writing into the profile
        self._process.wait(_SECONDS)
        os.close(self._read)
        os.close(self._write)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol to the page, and its result."""
        return self._send(method, session=self._session, **parameters)

    def resize(self, width: int, height: int = 900) -> None:
        """The window's size in pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, address: str) -> None:
        """Goes to an address, until the page has loaded."""
        self._loaded = False
        failed = self.send("Page.navigate", url=address).get("errorText")
        assert not failed, failed
        while not self._loaded:
            self._note(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression on the page; promises are awaited."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """The expression's value as soon as it is true."""
        until = time.monotonic() + _SECONDS
        while not (value := self.run(script)):
            assert time.monotonic() < until, f"still not so: {script}"
            time.sleep(0.05)
        return value

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key of the keyboard, as a hand would press it."""
        key_of = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        self.send("Input.dispatchKeyEvent", type="keyDown", **key_of)
        self.send("Input.dispatchKeyEvent", type="keyUp", **key_of | {"text": ""})

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == number:
                assert "error" not in heard, heard["error"]
                return heard["result"]
            self._note(heard)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._read], [], [], _SECONDS)
            more = os.read(self._read, 1 << 20) if ready else b""
            assert more, f"the browser says nothing (exit code {self._process.poll()})"
            self._waiting += more
        text, _, self._waiting = self._waiting.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        found = event.get("params", {})
        if event["method"] == "Page.loadEventFired":
            self._loaded = True
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif event["method"] == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(each.get("value", each.get("description"))) for each in found["args"]))
        elif event["method"] == "Runtime.exceptionThrown":
            self.console.append(found["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif event["method"] == "Log.entryAdded":
            self.console.append(f"{found['entry']['level']}: {found['entry']['text']} {found['entry'].get('url', '')}")
