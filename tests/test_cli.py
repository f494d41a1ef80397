"""The command line: what it lists."""

from __future__ import annotations

from labkit import cli, files


def test_list_and_doctor(capsys):
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "04 The graph-break cliff\n    How can one decorator" in listed
    assert "    BLOCKS = 40 " in listed and "a whole number from 1 to 1000" in listed
    assert cli.main(["lessons"]) == 0
    assert capsys.readouterr().out.split() == [path.stem for path in files.notebooks()]
    assert cli.main(["doctor"]) == 0
    assert "Ranks(2)" in capsys.readouterr().out
