"""A real browser for tests: Chromium through chromedriver, spoken to in the WebDriver protocol (JSON over HTTP)."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which the protocol names an element


class Browser:
    """One window of a headless Chromium without a network. Use it in a `with`."""

    def __init__(self, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        assert CHROMIUM and DRIVER, MISSING
        self.driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.driver.stdout is not None
        said = ""
        for said in self.driver.stdout:
            if match := re.search(r"started successfully on port (\d+)", said):
                self.url = f"http://127.0.0.1:{match[1]}/session"
                break
        else:
            raise RuntimeError(f"chromedriver did not start: {said}")
        words = [
            "--headless=new",
            "--no-sandbox",  # tests may run as root, as in a container
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--host-resolver-rules=MAP * ~NOTFOUND",  # no name is ever looked up
            f"--window-size={width},{height}",
            "--hide-scrollbars",
        ]
        options = {"binary": CHROMIUM, "args": words}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        try:
            session = self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
            self.url += f"/{session['sessionId']}"
            wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
            features = [{"name": name, "value": value} for name, value in wishes.items()]
            self.devtools("Emulation.setEmulatedMedia", features=features)
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the window and the driver."""
        try:
            if self.url.count("/") > 3:
                self._ask("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(20)
            if self.driver.stdout is not None:
                self.driver.stdout.close()

    def open(self, page: Path) -> None:
        self._ask("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *values: Any) -> Any:
        """What a script returns; it may be a promise."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(values)})

    def click(self, selector: str) -> None:
        self._ask("POST", f"/element/{self._find(selector)}/click", {})

    def press(self, *keys: str) -> None:
        """Presses keys one after another, wherever the focus is."""
        events = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": events}]})

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def complaints(self) -> list[str]:
        """What the console said since the last look: errors and warnings."""
        logged = self._ask("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in logged if entry["level"] in ("SEVERE", "WARNING")]

    def devtools(self, command: str, **values: Any) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": values})

    def resize(self, width: int, height: int) -> None:
        """The size of what is seen, exact also where windows have a least width."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def _find(self, selector: str) -> str:
        return self._ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def _ask(self, verb: str, path: str, content: dict[str, Any] | None = None) -> Any:
        body = json.dumps(content).encode() if content is not None else None
        request = urllib.request.Request(
            self.url + path, data=body, method=verb, headers={"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the driver is on this machine
        try:
            with opener.open(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{verb} {path}: {json.load(error)['value']['message']}") from error
