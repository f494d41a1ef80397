"""JupyterLab in Chromium: the server, the browser, and what a reader does there; shared by the tests in browser/."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil

ROOT = Path(__file__).resolve().parents[1]
ARTIFACTS = ROOT / "build" / "browser"
SETTINGS = {
    # cells outside of the window stay in the page, so that a test can read them
    "notebook-extension/tracker": {"windowingMode": "none"},
    # nothing may ask a network, or cover the page with a question
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
SCROLLS = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer"
READ = """
return [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell')].map(cell => ({
  folded: !!cell.querySelector('.jp-InputPlaceholder'),
  prompt: cell.querySelector('.jp-InputPrompt').textContent.trim(),
  text: [...cell.querySelectorAll('.jp-OutputArea-output')].map(part => part.innerText).join('\\n'),
  error: [...cell.querySelectorAll('[data-mime-type="application/vnd.jupyter.stderr"]')]
      .map(part => part.innerText).join('\\n'),
}))"""
# the picture of a widget: its bytes as text, because the address of the same bytes changes too
PICTURE = """
const [selector, done] = arguments, image = document.querySelector(selector)
if (!image || !image.complete || !image.naturalWidth) { done(null); return }
fetch(image.src).then(r => r.arrayBuffer()).then(b => done([...new Uint8Array(b)].join())).catch(() => done(null))
"""


def missing() -> str | None:
    """What a browser test lacks here, in one sentence; None where nothing."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        return "no chromium and chromedriver here: install chromium and chromium-driver (Debian's names)"
    if not importlib.util.find_spec("selenium"):
        return "selenium is not installed"
    return None


libc = ctypes.CDLL(None)


def with_us() -> None:
    """In a new process, before its program: end when the tests do, even if they are killed."""
    libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def end(process: psutil.Process | None, politely: Callable[[], Any]) -> None:
    """End a process and everything below it: politely, and by force what is left."""
    if process is None:
        return
    try:
        below = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        below = []
    try:
        politely()
    finally:
        _, alive = psutil.wait_procs(below, timeout=5)
        for left in alive:
            try:
                left.kill()  # psutil compares start times: never another process with the same pid
            except psutil.NoSuchProcess:
                pass


class Server:
    """JupyterLab over a folder, with settings and a data folder of its own; `url` has the token in it."""

    def __init__(self, folder: Path, home: Path):
        self.folder, self.log = folder, home / "jupyterlab.log"
        for name, value in SETTINGS.items():
            path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *_paths()])}
        for name in ("CONFIG", "DATA", "RUNTIME"):
            env[f"JUPYTER_{name}_DIR"] = str(home / name.lower())
        for name in ("SETTINGS", "WORKSPACES"):
            env[f"JUPYTERLAB_{name}_DIR"] = str(home / name.lower())
        env["IPYTHONDIR"] = str(home / "ipython")
        self.token, port = secrets.token_hex(16), _free_port()
        self.address = f"http://127.0.0.1:{port}"
        arguments = [
            "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={self.token}",
            "--LabApp.extension_manager=readonly", *(["--allow-root"] if os.getuid() == 0 else []),
        ]  # fmt: skip
        began = time.monotonic()
        with self.log.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *arguments], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=with_us,
            )  # fmt: skip
        self.process, self.known = process, psutil.Process(process.pid)
        try:
            self._wait(60)
        except BaseException:
            self.close()
            raise
        self.up_s = time.monotonic() - began

    def _wait(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        while True:
            try:
                self.ask("api/status")
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"JupyterLab did not come up:\n{self.log.read_text()[-2000:]}"
                    ) from None
                time.sleep(0.05)

    def ask(self, path: str, method: str = "GET") -> Any:
        request = Request(f"{self.address}/{path}?token={self.token}", method=method)
        with urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or "null")

    def end_kernels(self) -> None:
        for session in self.ask("api/sessions"):
            self.ask(f"api/sessions/{session['id']}", "DELETE")

    def close(self) -> None:
        end(self.known, self.process.terminate)
        self.process.wait()


class Page:
    """One notebook in JupyterLab, as its reader sees and moves it. Code cells are counted from 0."""

    def __init__(self, server: Server, name: str, driver: Any):
        self.server, self.driver = server, driver
        # a workspace of its own: JupyterLab opens again what was open in the last one, and starts its kernels
        where = f"lab/workspaces/{Path(name).stem}/tree/{name}"
        driver.get(f"{server.address}/{where}?token={server.token}")
        cells = json.loads((server.folder / name).read_text())["cells"]
        count = sum(cell["cell_type"] == "code" for cell in cells)
        self.wait(
            lambda: len(self.cells()) == count and not self.find("#jupyterlab-splash, .jp-Spinner"),
            60,
            "its cells",
        )
        self.idle()

    # looking

    def wait(self, condition: Callable[[], Any], limit: float, what: str) -> Any:
        """The first true value of `condition` within `limit` seconds; AssertionError says `what` did not come."""
        from selenium.common.exceptions import JavascriptException, StaleElementReferenceException

        deadline = time.monotonic() + limit
        while True:
            try:
                found = condition()
            except (StaleElementReferenceException, JavascriptException):
                found = None  # JupyterLab was just drawing it
            if found:
                return found
            shown = [(cell["prompt"], cell["text"][-300:]) for cell in self.cells()]
            assert time.monotonic() < deadline, f"{what}: not within {limit:g} s; the page shows {shown}"
            time.sleep(0.05)

    def find(self, selector: str) -> Any:
        """The first visible element, or None."""
        return next(
            (e for e in self.driver.find_elements("css selector", selector) if e.is_displayed()), None
        )

    def cells(self) -> list[dict[str, Any]]:
        """Of each code cell: `folded`, `prompt` ("[3]:", empty if folded), `text` of its outputs, `error` (in red)."""
        return self.driver.execute_script(READ)

    def picture(self, selector: str) -> str | None:
        """The bytes of a picture that the page shows, None while there is none."""
        return self.driver.execute_async_script(PICTURE, selector)

    def show(self, cell: int) -> None:
        """Scroll to a code cell."""
        one = self.driver.find_elements("css selector", ".jp-CodeCell")[cell]
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'start'})", one)

    def shoot(self, name: str, whole: bool = False) -> None:
        """Keep a picture of the window, or of the `whole` notebook."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        size = self.driver.get_window_size()
        if whole:
            tall = self.driver.execute_script(
                "return document.querySelector(arguments[0]).scrollHeight", SCROLLS
            )
            self.driver.set_window_size(size["width"], max(size["height"], min(tall + 300, 12_000)))
            self.driver.execute_script("document.querySelector(arguments[0]).scrollTop = 0", SCROLLS)
            time.sleep(0.5)  # until it is drawn anew
        self.driver.save_screenshot(str(ARTIFACTS / f"{name}.png"))
        if whole:
            self.driver.set_window_size(size["width"], size["height"])

    def idle(self) -> None:
        """Wait until the kernel is up and has nothing to do."""
        bar = "#jp-main-statusbar"
        self.wait(lambda: "Python 3 (ipykernel) | Idle" in self.find(bar).text, 60, "an idle kernel")

    # doing

    def click(self, selector: str, limit: float = 10) -> None:
        self.wait(lambda: self.find(selector), limit, f"{selector} to click on").click()

    def menu(self, title: str, command: str) -> None:
        """A command of the menu bar."""
        bar = self.driver.find_elements("css selector", ".lm-MenuBar-item")
        next(item for item in bar if item.text == title).click()
        self.click(f".lm-Menu-item[data-command='{command}']")

    def button(self, name: str) -> None:
        """A button of the notebook's toolbar: run, interrupt, restart."""
        self.click(f".jp-NotebookPanel:not(.lm-mod-hidden) [data-jp-item-name={name}] jp-button")

    def start(self, cell: int) -> None:
        """Select a code cell and press the run button."""
        self.show(cell)
        self.driver.find_elements("css selector", ".jp-CodeCell .jp-InputPrompt")[cell].click()
        self.button("run")

    def run(self, cell: int, limit: float = 60) -> dict[str, str]:
        """Run a code cell to its end; what it shows then."""
        before = self.cells()[cell]["prompt"]
        self.start(cell)
        return self.wait(lambda: self.ended(cell, before), limit, f"the end of cell {cell}")

    def ended(self, cell: int, before: str = "[ ]:") -> dict[str, str] | None:
        """What a code cell shows once it has a new number, else None."""
        now = self.cells()[cell]
        return now if now["prompt"] != before and now["prompt"].strip("[]:").isdigit() else None

    def leave(self) -> None:
        """Leave the page and end its kernel."""
        self.driver.get("about:blank")
        self.server.end_kernels()


def chromium() -> Any:
    """Debian's Chromium without a window, under selenium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.unhandled_prompt_behavior = "accept"  # leaving a page that was edited
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--remote-debugging-pipe",  # instead of a port: Chromium ends when its driver does, however that ended
    ):  # fmt: skip
        options.add_argument(argument)
    # with its path given, selenium looks for no other driver on the network
    service = Service(shutil.which("chromedriver"), popen_kw={"preexec_fn": with_us})
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(20)
    return driver


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
