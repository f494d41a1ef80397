"""For all tests, the examples in docstrings included: a data folder of their own, never the reader's."""

from __future__ import annotations

import os
import tempfile

import pytest

_home = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config):
    config.stash[_home] = tempfile.TemporaryDirectory(prefix="labkit-home-")
    os.environ["LABKIT_HOME"] = config.stash[_home].name


def pytest_unconfigure(config):
    config.stash[_home].cleanup()
