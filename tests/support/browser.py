"""A headless Chromium for tests, spoken to over two pipes in its own protocol: no driver and no package is needed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support import HANGS

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The browser of this machine; see tools/browser/setup."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One tab. `requests` are the addresses it has asked for, `complaints` what its console has said."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self.read, self.write = process.stdout.fileno(), process.stdin
        self.buffer = b""
        self.number = 0
        self.session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = False

    def attach(self) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one command; events that come before it are noted."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.write.write(json.dumps(message).encode() + b"\0")
        self.write.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, address: str, width: int, height: int = 900, dark: bool = False) -> None:
        """Goes there with a window of this size, and waits until all is loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.loaded = False
        self.send("Page.navigate", url=address)
        while not self.loaded:
            self._next()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            chunk = os.read(self.read, 1 << 16)
            assert chunk, "the browser has closed its pipe"
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(line)
        params = message.get("params", {})
        method = message.get("method")
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.complaints.append(json.dumps(params))
        elif method == "Page.loadEventFired":
            self.loaded = True
        return message


@contextmanager
def page(browser: str, timeout: float = HANGS) -> Iterator[Page]:
    """A tab in a browser of its own, which ends afterwards or, whatever happens, after so many seconds."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # As root, as in containers, there is no sandbox; our own page is all it will see.
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={folder}"]
        pipes = 'exec "$0" "$@" 3<&0 4>&1 >/dev/null 2>&1'  # it reads from 3 and writes to 4
        process = subprocess.Popen(
            ["sh", "-c", pipes, browser, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        watchdog = threading.Timer(timeout, lambda: os.killpg(process.pid, signal.SIGKILL))
        watchdog.start()
        try:
            tab = Page(process)
            tab.attach()
            yield tab
        finally:
            watchdog.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
