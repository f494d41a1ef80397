"""Ranks shared by the tests of a file: a start costs a fork, importing torch for the zygote costs seconds once."""

from __future__ import annotations

import gc
import json
import sys
import time

import pytest
from browsers import ARTIFACTS, ROOT

BEGAN = time.time()
# nbformat's validator would build a grammar for a second, to check addresses that no notebook has
sys.modules.setdefault("rfc3987_syntax", None)


# what computes for minutes starts first, so that the processes end together; what mostly waits runs beside it
COMPUTES = ("tests/lessons",)
WAITS = (
    "tests/study",
    "oddrank/tests/look",
    "tests/look",
    "tests/browser",
    "tests/faults",
    "tests/ranks",
    "tests/kernel",
)


def pytest_collection_modifyitems(items):
    """One group of tests that computes, one that waits, and so on; then the others."""
    turns = {}
    for begin, folders in enumerate((COMPUTES, WAITS)):
        those = [item for folder in folders for item in items if _folder(item) == folder]
        groups = dict.fromkeys(_group(item.nodeid) for item in those)
        turns |= {group: begin + 2 * place for place, group in enumerate(groups)}
    items.sort(key=lambda item: turns.get(_group(item.nodeid), 2 * len(turns)))


def _group(nodeid):
    """The tests of a file share what its fixtures made, so they stay in one process."""
    return nodeid.partition("::")[0]


def pytest_collection_finish():
    gc.freeze()  # what was imported stays: looking for garbage among it takes time in every test


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return _group(nodeid)

    return ByGroup(config, log)


def _folder(item):
    parts = item.path.relative_to(ROOT).parts
    return "/".join(parts[: 3 if parts[0] == "oddrank" else 2])


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data folder for each test, so that no answer of one is seen by the next."""
    folder = tmp_path / "home"
    monkeypatch.setenv("LABKIT_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def ranks():
    """Two gloo ranks on CPU."""
    import labkit

    with labkit.Ranks(2, device="cpu", backend="gloo", timeout=60, quiet=True) as two:
        yield two


@pytest.fixture(scope="module")
def three():
    """Three gloo ranks on CPU."""
    import labkit

    with labkit.Ranks(3, device="cpu", backend="gloo", quiet=True) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def shm_ranks():
    """Two ranks on CPU over shared memory."""
    import labkit

    with labkit.Ranks(2, device="cpu", backend="shm", timeout=120, quiet=True) as two:
        yield two


def pytest_terminal_summary(terminalreporter):
    """The times that the browser tests kept; here, because they run in a process of their own."""
    kept = ARTIFACTS / "times.json"
    if not kept.exists() or kept.stat().st_mtime < BEGAN:
        return
    terminalreporter.section("in the browser")
    for name, seconds in json.loads(kept.read_text()).items():
        terminalreporter.write_line(f"{seconds:6.2f} s  {name}")
    terminalreporter.write_line(f"pictures and times: {ARTIFACTS.relative_to(ROOT)}/")
