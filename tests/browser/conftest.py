"""JupyterLab and Chromium, once for all tests of this folder; a picture and the times of each are kept."""

from __future__ import annotations

import json
import os
import shutil
import time

import nbformat
import psutil
import pytest
from browsers import ARTIFACTS, ROOT, Page, Server, chromium, end, missing

TIMES: dict[str, float] = {}


def need_browser() -> None:
    """Skip where there is no browser; fail instead where LABKIT_NO_SKIP says that there must be one."""
    reason = missing()
    if reason and os.environ.get("LABKIT_NO_SKIP") == "1":
        pytest.fail(f"{reason} (and LABKIT_NO_SKIP=1 lets no browser test be skipped)")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")  # not longer: an open browser would disturb what later tests time
def server(tmp_path_factory):
    """JupyterLab over a copy of the lessons without their outputs."""
    need_browser()
    shutil.rmtree(ARTIFACTS, ignore_errors=True)
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "work" / "notebooks"
    shutil.copytree(ROOT / "notebooks", folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for path in folder.glob("*.ipynb"):
        lesson = nbformat.read(path, as_version=4)
        for cell in lesson.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(lesson, path)
    server = Server(folder, home)
    TIMES["JupyterLab up"] = server.up_s
    yield server
    server.close()
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    (ARTIFACTS / "times.json").write_text(
        json.dumps({name: round(s, 2) for name, s in TIMES.items()}, indent=1) + "\n"
    )


@pytest.fixture(scope="module")  # not longer: an open browser would disturb what later tests time
def browser():
    need_browser()
    driver = chromium()
    known = psutil.Process(driver.service.process.pid)
    yield driver
    end(known, driver.quit)


@pytest.fixture(scope="module")
def driver(server, browser):
    return browser


@pytest.fixture
def times():
    """Seconds by name: kept beside the pictures and told at the end of the tests. None of them is a verdict."""
    return TIMES


@pytest.fixture
def notebook(server, driver, request):
    """Open a notebook in the browser: a lesson by name, or a list of code cells. Afterwards its picture is kept."""
    name = request.node.name.removeprefix("test_")
    opened: list[Page] = []

    def open_(what: str | list[str]) -> Page:
        path = what if isinstance(what, str) else f"{name[:40]}.ipynb"
        if not isinstance(what, str):
            cells = [nbformat.v4.new_code_cell(source) for source in what]
            kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
            new = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
            nbformat.write(new, server.folder / path)
        began = time.monotonic()
        opened.append(Page(server, path, driver))
        TIMES.setdefault("lesson open", time.monotonic() - began)
        return opened[-1]

    yield open_
    for page in opened:
        page.shoot(name, whole=True)
        page.leave()
