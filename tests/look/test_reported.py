"""Programs after public reports of bugs: what `labkit look` has to say of each, as its owner would run it."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPORTED = Path(__file__).parent / "scripts" / "reported"
DONE, FAILED = 0, 3


@dataclass(frozen=True)
class Case:
    """What has to be in the terminal's text and on the page, and what in neither."""

    script: str
    status: int
    said: list[str]
    page: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)
    in_ci: bool = False

    @property
    def place(self) -> str:
        return f"{self.script}.py:"


DDPS_OWN = ["Avoid calling the function", "_inside_ddp_forward", "set_runtime_stats_and_log"]
CASES = []


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.script, marks=[] if c.in_ci else [pytest.mark.full]) for c in CASES]
)
@pytest.mark.slow
def test_report(case: Case, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "labkit", "look", "--out", "page", str(REPORTED / f"{case.script}.py")],
        capture_output=True, text=True, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    assert ran.returncode == case.status, ran.stdout + ran.stderr
    text = ran.stdout + ran.stderr
    assert "Traceback (most recent call last)" not in re.sub(r"\[rank \d\].*", "", text)
    page = html.unescape(
        re.sub("<[^>]+>", "", (tmp_path / "page" / "index.html").read_text(encoding="utf-8"))
    )
    for said in case.said:
        assert re.search(said, text), f"{said!r} is not in\n{text}"
    for said in [*case.said, *case.page] if case.status == DONE else case.page:
        assert re.search(said, page), f"{said!r} is not on the page"
    first = ran.stdout.partition("ranks differ")[0]
    for said in case.unsaid:
        assert said not in first
