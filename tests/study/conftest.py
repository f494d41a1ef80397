"""A data folder for each test, so that no answer of one is seen by the next."""

from __future__ import annotations

import pytest


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("LABKIT_HOME", str(folder))
    return folder
