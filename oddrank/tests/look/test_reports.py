"""`oddrank report`: one page of saved reports."""

from __future__ import annotations

import pandas as pd

from labkit.report import Report, provenance
from oddrank import command as cli


def report(name: str, **more) -> Report:
    table = pd.DataFrame({"rank": [0, 1], "breaks": [3, 3]})
    about = provenance(hardware="a <test>", date="2026-11-21", gpus="")
    return Report(name, f"About {name}", "gloo · cpu", {"counts": table}, ["slower"], about, **more)


def test_the_page_has_every_report_with_its_provenance(tmp_path, capsys):
    report("one").save(tmp_path)
    report("two", view="labkit.views:gone").save(tmp_path / "more")
    (tmp_path / "other.json").write_text("{}")
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "report.html" in capsys.readouterr().out
    body = (tmp_path / "report.html").read_text()
    for text in ("About one", "About two", "recorded on a &lt;test&gt;, 2026-11-21", "slower", "Provenance"):
        assert text in body
    assert "No figure: the view of report" in body
    assert "files that are no reports: 1" in body and "http" not in body


def test_a_folder_without_reports_is_one_sentence(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "there is no saved report in" in capsys.readouterr().err
