"""For all tests, the examples in docstrings included: a data folder of their own, never the reader's."""

from __future__ import annotations

import gc
import os
import signal
import tempfile

import pytest

from labkit import hardware

# torch's own switch: else Inductor builds four C++ programs in every cache folder, to try the CPU's instructions
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
_home = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config):
    # a shell's background job ignores Ctrl-C, and so would what the tests start
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_home] = tempfile.TemporaryDirectory(prefix="labkit-home-")
    os.environ["LABKIT_HOME"] = config.stash[_home].name


def pytest_collection(session):
    gc.disable()  # what is imported and collected stays: looking for garbage among it takes a third of the time


def pytest_collection_finish(session):
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config):
    config.stash[_home].cleanup()


# examples that need a torch with graphs of streams
STREAM_GRAPHS = ("course.shared.streams.captured.capture",)


# what `make test` leaves to `make test-all`: the slow tests of these places, but for those marked `guard`
LATER = (
    "course",  # examples that start ranks
    "tests/book",
    "tests/browser",
    "tests/delivered",
    "tests/kernel/test_script.py",
    "tests/ledger",
    "tests/lessons",  # whole lessons, and their rules elsewhere; solutions and mistakes are in tests/study
    "oddrank/tests/look",
    "tests/look",
    "tests/notebooks",
    "tests/test_rooms.py",
    "tests/test_wheel.py",
    "tests/tools",
    "tests/views",
)
SLOW = {"slow", "kernel", "browser"}


def _later(item):
    marks = {mark.name for mark in item.iter_markers()}
    where = item.path.relative_to(item.config.rootpath).as_posix()
    return marks & SLOW and "guard" not in marks and any(f"{where}/".startswith(f"{one}/") for one in LATER)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        # such an example runs an experiment, some with empty caches
        if item.name.startswith("course.") and any("Ranks(" in e.source for e in item.dtest.examples):
            item.add_marker(pytest.mark.slow)
        if _later(item):
            item.add_marker(pytest.mark.full)
    if hardware.torch_version().startswith("2.11."):
        for item in items:
            if item.name in STREAM_GRAPHS:
                item.add_marker(pytest.mark.skip(reason="torch 2.11 has no graphs of streams"))
