"""PerRank and Report: agreement, tidy tables, saving that loses nothing."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace

import pandas as pd
import pytest
from oddrank.run_label import run_label

import labkit
from labkit import files
from labkit.report import PerRank, Report
from labkit.timing import Times


@pytest.fixture
def report() -> Report:
    table = pd.DataFrame({"rank": [0, 1] * 10, "kind": ["python", "compute"] * 10, "us": [1.25, None] * 10})
    verdict = Times({"A": [1.0] * 12, "B": [2.0] * 12}).compare("A", "B")
    where = {"hardware": "2-core CPU", "date": "2026-01-02T03:04:05+00:00"}
    return Report("demo", "A demonstration", "gloo · cpu", {"main": table}, [verdict], where, ["a note"])


def test_same_returns_the_value_or_says_where_ranks_part():
    import torch

    assert PerRank([{"a": [1, 2]}, {"a": [1, 2]}]).same() == {"a": [1, 2]}
    with pytest.raises(ValueError, match="rank 0 has 1, rank 2 has 5"):
        PerRank([1, 1, 5]).same()
    with pytest.raises(ValueError, match=r"\(1 of 3 elements\)"):
        PerRank([torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])]).same()
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(3,\)"):
        PerRank([torch.ones(2), torch.ones(3)]).same()
    with pytest.raises(ValueError, match="dtypes torch.float32 and torch.float64"):
        PerRank([torch.ones(2), torch.ones(2, dtype=torch.float64)]).same()


def test_a_saved_report_comes_back_whole_and_labelled_as_recorded(report, tmp_path):
    path = report.save(tmp_path / "deep" / "folder")
    loaded = Report.load(path)
    pd.testing.assert_frame_equal(loaded.frame, report.frame)
    assert loaded.verdicts == report.verdicts and loaded.notes == report.notes
    assert loaded.label == "recorded on 2-core CPU, 2026-01-02"
    assert "recorded on" in loaded._repr_html_() and "A is faster than B" in loaded.text()


def test_only_named_tables_are_written_when_asked(report):
    assert list(json.loads(report.to_json([]))["tables"]) == []
    assert list(json.loads(report.to_json(["main"]))["tables"]) == ["main"]


def test_a_failed_save_keeps_the_old_file_and_leaves_no_temporary(report, tmp_path, monkeypatch):
    path = report.save(tmp_path)
    before = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ValueError, match="cannot save report 'demo' in .*No space left"):
        report.save(tmp_path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["demo.json"]


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/proc/self"), reason="needs a read-only place")
def test_a_read_only_folder_is_named(report):
    with pytest.raises(ValueError, match="cannot save report 'demo' in /proc/nowhere"):
        report.save("/proc/nowhere")


def test_files_that_are_no_reports_are_named(tmp_path):
    with pytest.raises(ValueError, match="cannot read report .*missing.json"):
        Report.load(tmp_path / "missing.json")
    (tmp_path / "bad.json").write_text("{not json")
    with pytest.raises(ValueError, match="bad.json is not a saved report"):
        Report.load(tmp_path / "bad.json")


BODY = {"name": "x", "title": "x", "label": "x", "tables": {}}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": "x"}, "it has no title, label, tables"),
        ([], "it is no JSON object"),
        (None, "it is no JSON object"),
        ({**BODY, "tables": []}, "'tables' is no JSON object"),
        ({**BODY, "provenance": "here"}, "'provenance' is no JSON object"),
        ({**BODY, "tables": {"main": [1]}}, "no attribute 'items'"),
        ({**BODY, "tables": {"main": {"a": [1], "b": [1, 2]}}}, "same length"),
        ({**BODY, "tables": {"main": {"a": {"texts": [], "index": [1]}}}}, "out of range"),
        ({**BODY, "verdicts": [{"a": 1}]}, ""),
        ({**BODY, "verdicts": [1]}, ""),
        ({**BODY, "label": 5}, ""),
    ],
)
def test_what_is_no_report_is_named_with_its_file(body, said, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(body))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))} is not a saved report: .*{said}"):
        Report.load(path)


def test_files_of_other_bytes_are_named_and_a_byte_order_mark_is_none_of_it(report, tmp_path):
    for name, data in (("latin", b'{"name": "\xe9"}'), ("deep", b"[" * 100_000), ("empty", b"")):
        (tmp_path / f"{name}.json").write_bytes(data)
        with pytest.raises(ValueError, match=f"{name}.json is not a saved report"):
            Report.load(tmp_path / f"{name}.json")
    with pytest.raises(ValueError, match="cannot read report .*: Is a directory"):
        Report.load(tmp_path)
    path = report.save(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Report.load(path).title == report.title


def test_a_report_without_a_view_says_so(report):
    with pytest.raises(ValueError, match="has no view to draw it with"):
        report.figure()


def test_labels():
    assert run_label("nccl", "cuda", 2, 2) == "nccl"
    assert run_label("gloo", "cuda", 2, 1) == "gloo · 1 gpu"
    assert run_label("shm", "cpu") == "shm · cpu"
    with pytest.raises(ValueError, match="no run label for backend 'mpi'"):
        run_label("mpi", "cpu")


def test_a_named_index_is_a_column_wherever_the_report_goes(report, monkeypatch):
    table = pd.DataFrame({"ms": [1.5, 2.5]}, index=pd.Index(["B", "C"], name="variant"))
    named = Report("demo", "A demonstration", "gloo · cpu", {"main": table})
    assert "variant" in str(named) and "variant" in named._repr_html_()
    assert Report.from_json(named.to_json()).frame.to_dict("list") == {
        "variant": ["B", "C"],
        "ms": [1.5, 2.5],
    }


def test_it_is_data_in_a_cell_only_where_labkit_executes_the_lesson(report, monkeypatch):
    assert report._repr_mimebundle_() == {}
    monkeypatch.setenv("LABKIT_REPORTS", "1")
    ((kind, text),) = report._repr_mimebundle_().items()
    assert kind.startswith("application/") and Report.from_json(text).verdicts[0].outcome == "faster"
    assert report.recorded()._repr_mimebundle_() == {}, "whoever recorded it has kept it"


def test_its_figure_leaves_the_same_data_beside_the_picture(report, monkeypatch):
    rows = pd.DataFrame({"test": ["env"], "run": ["fault alone"], "good": [True], "how": ["silent"]})
    table = {"tests": rows.assign(numbers="wrong numbers", said="rank 0: x", seconds=0.1)}
    shown = replace(report, tables=table, view="course.break_it.figures:figure")
    assert shown.figure()._repr_mimebundle_() == ({}, {"image/png": {"alt": shown.figure().summary}})
    monkeypatch.setenv("LABKIT_REPORTS", "1")
    data, _ = shown.figure()._repr_mimebundle_()
    assert data == shown._repr_mimebundle_() and data
    assert shown.recorded().figure()._repr_mimebundle_()[0] == {}


def test_what_benchmarks_take_from_the_module_is_there():
    sources = [path.read_text() for path in sorted(files.ours("benchmarks").glob("*.py"))]
    names = {name for source in sources for name in re.findall(r"\blabkit\.report\.(\w+)", source)}
    assert names and [name for name in sorted(names) if not hasattr(labkit.report, name)] == []


def test_a_view_that_is_gone_is_named():
    gone = Report(
        "demo", "A demonstration", "gloo · cpu", {"main": pd.DataFrame()}, view="labkit.views:nothing"
    )
    with pytest.raises(
        ValueError, match="the view of report 'demo', labkit.views:nothing, is not there any more"
    ):
        gone.figure()


def test_the_table_of_a_pivot_has_no_column_for_the_name_of_its_columns():
    rows = pd.DataFrame(
        {"drill": ["order", "merge"], "defence": ["plan", "traced"], "outcome": ["caught", "caught"]}
    )
    matrix = rows.pivot(index="drill", columns="defence", values="outcome")
    for table in (matrix, matrix.reset_index()):
        page = Report("one", "One", "gloo · cpu", {"matrix": table})._repr_html_()
        assert re.findall("<th>(.*?)</th>", page) == ["drill", "plan", "traced"]


def test_a_report_of_the_cpu_says_so_on_a_machine_with_gpus():
    made = {"hardware": "2x H200", "gpus": ["H200", "H200"], "date": "2026-11-22T10:00:00"}
    on_cpu = Report("x", "x", "gloo · cpu", {}, [], {**made, "device": "cpu"})
    assert on_cpu.recorded().label == "recorded on the CPU beside 2x H200, 2026-11-22"
    assert on_cpu.recorded().recorded().label == on_cpu.recorded().label
    assert (
        Report("x", "x", "nccl", {}, [], {**made, "device": "cuda"})
        .recorded()
        .label.startswith("recorded on 2x")
    )


def test_a_file_from_elsewhere_cannot_name_any_function_to_draw_with():
    table = {"main": pd.DataFrame({"rank": [0]})}
    with pytest.raises(ValueError, match="the view of report 'demo' is of none of labkit, course: os:abort"):
        Report("demo", "A demonstration", "gloo · cpu", table, view="os:abort").figure()
