"""docs/labkit.md: every public name of labkit stands in an example on it, and the examples run."""

from __future__ import annotations

import re

import labkit
from labkit import files, study, timing

# what `compare` returns, and two helpers of figures and exercises
IN_WORDS = {"Verdict", "check_rounds", "wider_interval"}


def test_the_examples_run_and_have_every_public_name(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", files.ours("docs/labkit.md").read_text(), re.DOTALL)
    space: dict = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/labkit.md [{number}]", "exec"), space)
    said = capsys.readouterr().out
    assert "rank 1 raised ValueError: bad batch" in said and "rank 0 was waiting in all_reduce" in said
    assert space["bench"].tries[-1].result == "returns"
    used = set(re.findall(r"\w+", "".join(blocks)))
    public = {*labkit.__all__, *study.__all__, *timing.__all__}
    assert public - used == IN_WORDS
