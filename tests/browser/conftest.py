"""A browser, pages that watch themselves, explorers without a kernel, and JupyterLab.

`mount(explorer)` shows an explorer on a bare page; `page` is an empty page; `lab` is a running JupyterLab. Every page
fails its test if anything is written to its console as an error, or if it asks another host for anything.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page, sync_playwright
from views import watched

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ["chromium", "chromium-browser", "google-chrome", "chrome", "msedge"]
HERE = {"127.0.0.1", "localhost", ""}  # "" is that of data: and blob: addresses


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """By default a browser opens for one test of each explorer."""
    for item in items:
        here = item.path.parent == Path(__file__).parent
        if here and item.originalname != "test_it_shows_itself_and_answers_a_touch":
            item.add_marker(pytest.mark.full)


# What Jupyter does with an explorer, in thirty lines: a model with its events, and a place for each view.
BARE_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Explorer</title><link rel="icon" href="data:,"><link rel="stylesheet" href="style.css">
<style>body { margin: 0; } @media (prefers-color-scheme: dark) { body { background: #131416; } }</style>
</head><body><div id="first"></div><div id="second"></div><script type="module">
import * as script from "./module.js";
const state = await (await fetch("state.json")).json();
const callbacks = [];
const model = {
  get: (name) => state[name],
  set(name, value) {
    if (state[name] === value) return;
    state[name] = value;
    for (const [event, callback] of [...callbacks]) if (event === `change:${name}`) callback();
  },
  save_changes: () => (window.saved = { ...state }),
  on: (event, callback) => callbacks.push([event, callback]),
  off(event, callback) {
    const place = callbacks.findIndex((entry) => entry[0] === event && entry[1] === callback);
    if (place >= 0) callbacks.splice(place, 1);
  },
};
const show = (id) => script.default.render({ model, el: document.getElementById(id) });
Object.assign(window, { script, model, callbacks, show, remove: show("first") });
</script></body></html>
"""


def chromium(playwright) -> str | None:
    """Playwright's own Chromium, or one that is installed in the system."""
    own = playwright.chromium.executable_path
    return own if Path(own).exists() else next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    with sync_playwright() as playwright:
        path = chromium(playwright)
        if path is None:
            pytest.skip("needs Chromium; run: python -m playwright install chromium")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """An empty page of 1000 × 800 pixels; see the top of this file for what it demands."""
    context = browser.new_context(viewport={"width": 1000, "height": 800}, reduced_motion="reduce")
    page = watched(context.new_page())
    page.set_default_timeout(20_000)
    yield page
    context.close()
    assert not page.errors, page.errors
    foreign = [url for url in page.asked if not local(url)]
    assert not foreign, foreign


def local(url: str) -> bool:
    """Whether an address is on this machine."""
    return (urllib.parse.urlsplit(url).hostname or "") in HERE


class QuietHandler(SimpleHTTPRequestHandler):
    """Files of a folder, without a log."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript"}  # Windows has its own ideas

    def log_message(self, *arguments):
        pass


@pytest.fixture
def mount(page, tmp_path):
    """`mount(explorer)`: the page, with the explorer on it as in a notebook, but without a kernel.

    On the page: `script`, its module; `model`, with `saved`, the state last sent to Python; `show("second")`, another
    view of the same model; `remove()`, which ends the first view; `callbacks`, the model's listeners.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=tmp_path))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()

    def show(explorer) -> Page:
        state = explorer.get_state()
        files = {"index.html": BARE_PAGE, "module.js": state.pop("_esm"), "style.css": state.pop("_css")}
        for name, text in (files | {"state.json": json.dumps(state)}).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        page.wait_for_function("'remove' in window")
        return page

    yield show
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address, its token and the folder that it shows."""

    address: str
    token: str
    folder: Path

    def write(self, name: str, *cells: str) -> None:
        """Put a notebook of these code cells into the folder."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.folder / name)

    def open(self, page: Page, name: str) -> None:
        """Open a notebook of the folder alone, in a fresh workspace, and wait for its kernel."""
        page.goto(f"{self.address}/lab/workspaces/{time.time_ns()}/tree/{name}?token={self.token}&reset")
        page.wait_for_function("window.jupyterapp?.shell.currentWidget?.content?.widgets", timeout=60_000)
        page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'", timeout=60_000
        )

    def run_all(self, page: Page) -> None:
        """Run every cell of the open notebook, to the end."""
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")

    def save(self, page: Page) -> dict:
        """Save the open notebook; what is then in its file."""
        name = page.evaluate("window.jupyterapp.shell.currentWidget.context.path")
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def run_cell(self, page: Page, number: int) -> str:
        """Run one cell of the open notebook, counted from 0; its output as text."""
        page.evaluate(f"window.jupyterapp.shell.currentWidget.content.activeCellIndex = {number}")
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-cell')")
        return page.locator(".jp-Notebook .jp-CodeCell").nth(number).locator(".jp-OutputArea-output").inner_text()


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab with the course's settings and nobody's own, on a copy of the chapters."""
    home = tmp_path_factory.mktemp("lab")
    folder = home / "work"
    shutil.copytree(ROOT / "chapters", folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lab = Lab(f"http://127.0.0.1:{port}", "for-the-tests", folder)
    own = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"]
    own += ["JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"]
    environment = os.environ | {name: str(home / name.lower()) for name in own}
    environment |= {"JUPYTER_CONFIG_PATH": str(ROOT / ".jupyter"), "JUPYTER_PREFER_ENV_PATH": "1"}
    options = [f"--port={port}", "--ip=127.0.0.1", "--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}"]
    options += [f"--IdentityProvider.token={lab.token}", "--ServerApp.port_retries=0", "--expose-app-in-browser"]
    log = home / "jupyter.log"
    with log.open("wb") as file:
        command = [sys.executable, "-m", "jupyterlab", *options]
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until_it_answers(lab, process, log)
        yield lab
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_it_answers(lab: Lab, process: subprocess.Popen, log: Path, seconds: int = 60) -> None:
    """Return when JupyterLab is up; its log is the message where it does not come up."""
    for _ in range(10 * seconds):
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{lab.address}/api/status?token={lab.token}", timeout=5).close()
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("JupyterLab did not start:\n" + log.read_text(encoding="utf-8", errors="replace"))
