"""Averages of weights by name, where torch.compile and DDP have changed the names of the model."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "averages.py"
LINES = SCRIPT.read_text(encoding="utf-8").splitlines()
UPDATE = f"averages.py:{next(n for n, text in enumerate(LINES, 1) if text.endswith('# THE UPDATE'))}"
LEFT = f"{UPDATE}: names are read here of which a dict has none: it keeps 4 of these parameters"
TWICE = "a dict of 8 tensors has weights under two names"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expected"),
    [("updated", ()), ("grows", (TWICE, LEFT)), pytest.param("skipped", (LEFT,), marks=pytest.mark.full)],
)
def test_weights_under_changed_names_are_found(tmp_path, kind, expected):
    ran = subprocess.run(
        [sys.executable, "-m", "oddrank", "look", "--out", "page", str(SCRIPT), kind],
        capture_output=True, text=True, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    plain = html.unescape(re.sub("<[^>]+>", " ", page))
    for text in (ran.stdout, plain):
        assert [said for said in (TWICE, LEFT) if said in text] == list(expected)
        assert ("`_orig_mod.module.up.weight`" in text) == bool(expected)
