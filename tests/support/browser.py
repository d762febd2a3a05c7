"""A real browser without a screen, driven by its own protocol: what a page shows, asks for, and
complains about."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp

PROGRAM = "chromium"
WAIT_S = 60.0


def is_there() -> bool:
    return shutil.which(PROGRAM) is not None


def brightness(colour: str) -> int:
    """Of a colour as browsers say it: ``rgb(1, 2, 3)``."""
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


@contextmanager
def browser(base: Path, *, options: tuple[str, ...] = ()) -> Iterator["Tab"]:
    """A tab of a browser whose files are below ``base``."""
    profile = base / "browser"
    command = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    command += ["--disable-background-networking", "--no-first-run", *options]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={profile}", "about:blank"],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(base)},
    )
    try:
        where = profile / "DevToolsActivePort"
        deadline = time.monotonic() + WAIT_S
        while not where.exists() or not where.read_text().strip():
            assert time.monotonic() < deadline and process.poll() is None, "the browser starts"
            time.sleep(0.02)
        with Tab(int(where.read_text().split()[0])) as tab:
            yield tab
    finally:
        process.kill()
        process.wait()


class Tab:
    """One tab. ``complaints`` are errors and warnings of its pages, ``requests`` what they asked
    for."""

    def __init__(self, port: int) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = threading.Event()
        self._number = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._await(self._connect())
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._await(self._hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _await(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _connect(self) -> None:
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{self._port}/json") as response:
            (target, *_) = [one for one in await response.json() if one["type"] == "page"]
        url = target["webSocketDebuggerUrl"]
        self._socket = await self._session.ws_connect(url, max_msg_size=0)
        self._listening = asyncio.ensure_future(self._listen())

    async def _hang_up(self) -> None:
        await self._socket.close()
        await self._listening
        await self._session.close()

    async def _listen(self) -> None:
        async for message in self._socket:
            value = json.loads(message.data)
            if "id" in value:
                self._answers.pop(value["id"]).set_result(value)
            else:
                self._note(value["method"], value["params"])

    def _note(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", str(details)))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])

    def call(self, method: str, **arguments: Any) -> Any:
        """A command of the protocol."""

        async def ask() -> Any:
            self._number += 1
            answer = self._answers[self._number] = self._loop.create_future()
            await self._socket.send_json(
                {"id": self._number, "method": method, "params": arguments}
            )
            return await answer

        value = self._await(ask())
        assert "error" not in value, value
        return value["result"]

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self._loaded.clear()
        self.call("Page.navigate", url=url)
        assert self._loaded.wait(WAIT_S), f"{url} is loaded"

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        done = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait_for(self, script: str, what: str = "") -> Any:
        """The value of an expression, once it is true."""
        deadline = time.monotonic() + WAIT_S
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, (what or script, self.complaints)
            time.sleep(0.05)
        return found

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def scheme(self, name: str) -> None:
        """Light or dark."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str, code: int, *, shift: bool = False) -> None:
        """A key, like ``Tab`` (9) or ``Enter`` (13)."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        text = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)
