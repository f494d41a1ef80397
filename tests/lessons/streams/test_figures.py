"""The saved reports of lesson 06 as pictures."""

from __future__ import annotations

import pytest

from labkit import Report, files

SAVED = [
    path
    for name in ("streams", "microbatch")
    for path in sorted(files.ours("data/recorded").glob(f"*/{name}.json"))
]


@pytest.mark.parametrize("path", SAVED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_saved_report_is_drawn_with_its_label(path):
    report = Report.load(path)
    if report.view:  # those of the cells have none
        assert report.figure().summary.endswith(f"[{report.label}]")


def test_a_report_without_its_tables_is_refused():
    report = Report("streams", "x", "simulated", {}, view="course.streams.figures:figure")
    with pytest.raises(ValueError, match="neither a table 'samples' nor a table 'spans'"):
        report.figure()
