"""The table of experiments: a row for each, whether this machine has recorded it or not."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit import experiments, hardware
from labkit.lessons.ledger.recordings import recorded_experiments
from labkit.report import Report


def save(folder, name, date="2026-01-02", verdicts=(), notes=()):
    made = {"date": date, "torch": "2.13.0", "hardware": "a box"}
    Report(
        name, name, "gloo · cpu", {"main": pd.DataFrame({"n": [1, 2]})}, list(verdicts), made, list(notes)
    ).save(folder)


def test_every_experiment_has_a_row_recorded_or_not(tmp_path):
    mine = tmp_path / f"{hardware.slug()}-2026-01-02"
    save(mine, "cliff", verdicts=["C is faster"], notes=["a note"])
    save(mine, "guards", notes=["a note"])
    save(mine, "drift")
    save(tmp_path / "elsewhere-2026-03-04", "depth")
    table = recorded_experiments(tmp_path).set_index("experiment")
    assert list(table.index) == list(experiments.declared())
    assert table.loc["cliff", ["recorded", "torch", "found", "how"]].tolist() == [
        "2026-01-02",
        "2.13.0",
        "C is faster",
        "",
    ]
    assert table.loc["guards", "found"] == "a note" and table.loc["drift", "found"] == "2 rows, no verdict"
    assert table.loc["depth", ["recorded", "how"]].tolist() == ["", "labkit record depth"]
    assert table.loc["depth", "question"] == experiments.get("depth").question


def test_a_recording_that_cannot_be_read_is_named(tmp_path):
    mine = tmp_path / f"{hardware.slug()}-2026-01-02"
    mine.mkdir()
    (mine / "cliff.json").write_text("{")
    with pytest.raises(ValueError, match="cliff.json is not a saved report"):
        recorded_experiments(tmp_path)
