"""Limits grow with a slow machine and a busy one, and are never below what was asked for."""

from __future__ import annotations

import pytest

from labkit import pace
from labkit.hardware import cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with this file of its speed, and this many processes for each core."""

    def made(kept: str | None, busy: float) -> None:
        monkeypatch.setattr(pace, "KEPT", tmp_path / "pace.json")
        if kept is not None:
            pace.KEPT.write_text(kept)
        monkeypatch.setattr("os.getloadavg", lambda: (busy * cores(), 0.0, 0.0))
        pace._kept_s.cache_clear()

    yield made
    pace._kept_s.cache_clear()


@pytest.mark.parametrize(
    ("kept", "busy", "seconds"),
    [
        (f'{{"compile_cpu_s": {3 * pace.USUAL_S}}}', 0.0, 30.0),
        (f'{{"compile_cpu_s": {2 * pace.USUAL_S}}}', 4.0, 80.0),
        (f'{{"compile_cpu_s": {pace.USUAL_S / 5}}}', 0.2, 10.0),
        (None, 1.5, 15.0),
        ("torn {", 0.0, 10.0),
        ('{"compile_cpu_s": "fast"}', 0.0, 10.0),
        ("[]", 0.0, 10.0),
    ],
)
def test_a_limit_grows_with_the_compile_and_the_load(machine, kept, busy, seconds):
    machine(kept, busy)
    assert pace.patience(10) == pytest.approx(seconds, abs=0.11)
    assert pace.patience(10) >= 10
