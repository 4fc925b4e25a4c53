"""Pages in Debian's Chromium, without a window and without a network. The fixture `browser` is in conftest.py."""

import base64
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MISSING = "there is no browser: install Debian's chromium and chromium-driver"
SWITCHES = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb",
    "--proxy-server=127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip
# Keys as Chromium's protocol names them, with their codes and, where they enter some, their text.
KEYS = {
    "Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), " ": (32, " "), "End": (35, ""), "Home": (36, ""),
    "ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""), "ArrowDown": (40, ""),
}  # fmt: skip


class Browser:
    """One Chromium, and the page that it shows."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._width = 0
        self._cdp("Page.enable")

    def open_page(self, path: Path, width: int = 1280, dark: bool = False, height: int = 900) -> None:
        """Open a file at a width in pixels, in light or dark; its scripts have started when this returns."""
        self._width = width
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._cdp("Emulation.setDeviceMetricsOverride", **size)
        self._scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._cdp("Emulation.setEmulatedMedia", media="", features=[self._scheme])
        self.move_pointer(0, 0)
        self._logs()
        self._driver.get(path.resolve().as_uri())

    def emulate_print(self) -> None:
        """Show the page as it would be printed, until another one is opened."""
        self._cdp("Emulation.setEmulatedMedia", media="print", features=[self._scheme])

    def check_page(self, path: Path) -> None:
        """The page has requested nothing but itself, no script failed, and nothing sticks out at the right."""
        requests, problems = self._logs()
        assert requests == [path.resolve().as_uri()], f"the page requests {requests}"
        assert not problems, problems
        width = self.run("return document.documentElement.scrollWidth")  # a phone's innerWidth would grow with the page
        assert width <= self._width, f"the page is {width} pixels wide, the window {self._width}"

    def check_accessibility(self) -> None:
        """axe finds nothing, and whatever can be pressed is at least 24 pixels wide and high, but for links in text."""
        import axe_core_python

        self.run((Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
        result = self.run("return axe.run()")
        found = result["violations"]
        assert not found, [(one["id"], node["html"], node["failureSummary"]) for one in found for node in one["nodes"]]
        ended = [one["id"] for one in result["incomplete"] if not one["nodes"]]
        assert not ended, f"axe could not apply its rules {ended}; it cannot read color-mix()"
        small = self.run(
            "const shown = [...document.querySelectorAll("
            "'button, input, select, summary, [role=button], [role=slider], [role=option]')]"
            ".map(one => [one, one.closest('label') ?? one])"
            ".map(([one, target]) => [one.outerHTML.slice(0, 200), target.getBoundingClientRect()]);"
            "return shown.filter(([, area]) => area.width && (area.width < 24 || area.height < 24))"
            ".map(([name, area]) => `${name}: ${area.width} x ${area.height}`)"
        )
        assert not small, small

    def _logs(self) -> tuple[list[str], list[str]]:
        """Addresses requested, and the console's messages, since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")], [
            entry["message"] for entry in self._driver.get_log("browser")
        ]

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns; of a promise, its value."""
        return self._driver.execute_script(script, *arguments)

    def wait(self, condition: str, seconds: float = 20.0) -> Any:
        """Wait until an expression of JavaScript is true; returns its value."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {condition}")):
            assert time.monotonic() < end, f"not true after {seconds} s: {condition}"
            time.sleep(0.02)
        return value

    def text(self, selector: str) -> str:
        """The text of the first element that a selector finds, as a reader sees it."""
        text: str = self.run("return document.querySelector(arguments[0]).innerText", selector)
        return text.strip()

    def press(self, *keys: str) -> None:
        """Press keys of KEYS, one after the other."""
        for key in keys:
            code, text = KEYS[key]
            common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
            self._cdp("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
            self._cdp("Input.dispatchKeyEvent", type="keyUp", **common)

    def centre(self, selector: str, index: int = 0) -> tuple[float, float]:
        """Scroll to the element numbered `index` that a selector finds; its centre in the window."""
        x, y = self.run(
            "const found = document.querySelectorAll(arguments[0])[arguments[1]];"
            "found.scrollIntoView({block: 'center'}); const area = found.getBoundingClientRect();"
            "return [area.left + area.width / 2, area.top + area.height / 2]",
            selector,
            index,
        )
        return x, y

    def move_pointer(self, x: float, y: float) -> None:
        self._cdp("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self._cdp("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, x: float, y: float) -> None:
        """Touch with a finger."""
        self._cdp("Emulation.setTouchEmulationEnabled", enabled=True)
        self._cdp("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self._cdp("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self._cdp("Emulation.setTouchEmulationEnabled", enabled=False)

    def screenshot(self, full: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        taken = self._cdp("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        return base64.b64decode(taken["data"])

    def pixels(self) -> np.ndarray:
        """The window's pixels: (height, width, 3) uint8."""
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.screenshot())).convert("RGB"))

    def print_media(self, is_printed: bool) -> None:
        """Lay the page out as for paper, or as for the screen."""
        self._cdp("Emulation.setEmulatedMedia", media="print" if is_printed else "")

    def before_scripts(self, script: str) -> str:
        """Run a script in every page before its own; returns a name for `no_longer`."""
        name: str = self._cdp("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
        return name

    def no_longer(self, name: str) -> None:
        self._cdp("Page.removeScriptToEvaluateOnNewDocument", identifier=name)

    def allow_scripts(self, allowed: bool) -> None:
        self._cdp("Emulation.setScriptExecutionDisabled", value=not allowed)

    def clipboard(self) -> str:
        """The text that was copied last."""
        self._cdp("Browser.grantPermissions", permissions=["clipboardReadWrite"])
        text: str = self.run("return navigator.clipboard.readText()")
        return text

    def _cdp(self, command: str, **parameters: object) -> Any:
        return self._driver.execute_cdp_cmd(command, parameters)


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Start Chromium. Without one a test is skipped, or fails with NMT_BROWSER=required; none with NMT_BROWSER=none."""
    if os.environ.get("NMT_BROWSER") == "none":
        pytest.skip("NMT_BROWSER=none")
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("chromium-browser")
    if driver is None or chromium is None:
        if os.environ.get("NMT_BROWSER") == "required":
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    # Where /dev/shm is small or missing, Chromium would crash; the profile is a new one.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for switch in [*SWITCHES, "--disable-dev-shm-usage", f"--user-data-dir={profile}"]:
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        # Both programs are named, so Selenium does not look for them on the network.
        started = webdriver.Chrome(options=options, service=Service(driver))
        try:
            started.get("about:blank")  # or its own new tab's requests would be counted as the first page's
            yield Browser(started)
        finally:
            started.quit()
