# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through chromedriver's HTTP interface (W3C WebDriver) with urllib.

with Browser() as browser:
    browser.open(path.as_uri())
    assert browser.run("return document.title") == "…"
"""

import base64
import json
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
Show = Callable[..., Path]
"""Write a profile as a page, with options of its format, and open it: a fixture of conftest.py."""
KEYS = {"enter": "\ue007", "escape": "\ue00c", "left": "\ue012", "up": "\ue013", "right": "\ue014", "down": "\ue015"}


def _started() -> tuple[subprocess.Popen[str], int]:
    """Return a running chromedriver and its port; it may lose the port that it chose to another program."""
    said = ""
    for _ in range(3):
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert driver.stdout is not None
        for line in driver.stdout:
            if "started successfully on port" in line:
                return driver, int(line.rstrip(". \n").rsplit(" ", 1)[1])
            said += line
        driver.stdout.close()
        driver.wait()
    raise RuntimeError(f"chromedriver did not start: {said}")


def javascript(name: str) -> str:
    """Return a function body of tests/browser/scripts."""
    return Path(__file__).with_name("scripts").joinpath(f"{name}.js").read_text()


class Browser:
    """One chromedriver, one browser, one page, with a new user-data directory."""

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._driver, port = _started()
        self._url = f"http://127.0.0.1:{port}"
        flags = [*_FLAGS, f"--user-data-dir={self._home.name}", f"--window-size={width},{height}"]
        wanted = {"goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/session/{session['sessionId']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("DELETE", "")
        self._driver.terminate()
        self._driver.wait()
        assert self._driver.stdout is not None
        self._driver.stdout.close()
        self._home.cleanup()

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with _DIRECT.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def show(self, page: Path, is_ready: str) -> None:
        """Open a page in the usual size, and wait until a JavaScript expression is true and all is drawn."""
        self.resize(1200, 800)
        self.open(page.as_uri())
        self.run_async(f"const done = arguments[0], ask = () => {is_ready} ? done() : setTimeout(ask, 10); ask();")
        self.settle()

    def run(self, script: str, *args: object) -> Any:
        return self._call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def run_async(self, script: str, *args: object) -> Any:
        """Run a JavaScript function body and return the value passed to its callback."""
        return self._call("POST", "/execute/async", {"script": script, "args": list(args)})

    def settle(self) -> None:
        self.run_async("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));")

    def click(self, x: float, y: float) -> None:
        self._pointer(x, y, press=True)

    def hover(self, x: float, y: float) -> None:
        self._pointer(x, y, press=False)

    def _pointer(self, x: float, y: float, *, press: bool) -> None:
        steps: list[dict[str, object]] = [{"type": "pointerMove", "duration": 0, "x": int(x), "y": int(y)}]
        if press:
            steps += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": steps}
        self._call("POST", "/actions", {"actions": [mouse]})
        self.settle()

    def type(self, text: str) -> None:
        """Press keys, one after the other, at the focus; KEYS has the special ones."""
        keys = [{"type": kind, "value": char} for char in text for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": keys}]})
        self.settle()

    def resize(self, width: int, height: int) -> None:
        """Resize the page, also to widths of phones, below those of desktop windows."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)
        self.settle()

    def prefer(self, scheme: str) -> None:
        self._devtools("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.settle()

    def _devtools(self, command: str, params: object) -> Any:
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def console(self) -> list[str]:
        """Return the errors logged since the last call, violations of the page's policy included."""
        log = self._call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]

    def picture(self) -> str:
        """Return the page as PNG, in base64."""
        return str(self._call("GET", "/screenshot"))

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.picture()))


def text(browser: Browser, id_: str) -> str:
    return str(browser.run("return document.getElementById(arguments[0]).textContent", id_))
