"""Ranks shared by the tests of a file: a start costs a fork, importing torch for the zygote costs seconds once."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def ranks():
    """Two gloo ranks on CPU."""
    import labkit

    with labkit.Ranks(2, device="cpu", backend="gloo", timeout=60, quiet=True) as two:
        yield two


@pytest.fixture(scope="module")
def shm_ranks():
    """Two ranks on CPU over shared memory."""
    import labkit

    with labkit.Ranks(2, device="cpu", backend="shm", timeout=120, quiet=True) as two:
        yield two
