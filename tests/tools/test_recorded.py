"""What lies in data/recorded: the newest recording of a machine, or of any."""

from __future__ import annotations

from tools import recorded


def test_the_newest_of_a_machine_or_of_any(tmp_path):
    for folder in ("a-box-2026-01-02", "a-box-2025-12-31", "z-box-2026-01-01", "no-date"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cliff.json").write_text("{}")
    assert recorded.newest("cliff", folder=tmp_path).parent.name == "a-box-2026-01-02"
    assert recorded.newest("cliff", "z-box", tmp_path).parent.name == "z-box-2026-01-01"
    assert recorded.newest("cliff", "box", tmp_path) is None
    assert recorded.newest("depth", folder=tmp_path) is None
