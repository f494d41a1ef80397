"""The command line: what is listed, and one sentence for what cannot be done."""

from __future__ import annotations

import pytest

from labkit import cli, files


def test_list_and_doctor(capsys):
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert "04 The graph-break cliff\n    How can one decorator" in listed
    assert "    BLOCKS = 40 " in listed and "a whole number from 1 to 1000" in listed
    assert cli.main(["list", "--names"]) == 0
    assert capsys.readouterr().out.split() == [path.stem for path in files.lessons()]
    assert cli.main(["doctor"]) == 0
    assert "Ranks(2)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nothing"], "unknown lesson 'nothing': there is 00, 01"),
        (["run", "04", "--save", "/proc/nowhere"], "cannot write in /proc/nowhere"),
        (["program", "17"], "lesson 17_one_compile has no script"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments, sentence, capsys):
    assert cli.main(arguments) == 2
    found = capsys.readouterr()
    assert found.err.startswith("labkit: ") and sentence in found.err
    assert "Traceback" not in found.err
