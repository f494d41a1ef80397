"""Gradients of which ranks keep parts of their own: each mistake is named, and healthy programs stay silent."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "gradients.py"
LINES = SCRIPT.read_text(encoding="utf-8").splitlines()
TAKEN = "is taken for replicated over dimension tp of the mesh, and differs between ranks"


def look(folder: Path, kind: str, backend: str) -> tuple[str, str]:
    """What was printed, and the text of the page."""
    command = [sys.executable, "-m", "oddrank", "look", "--step", "step", "--out", "page"]
    ran = subprocess.run(
        [*command, str(SCRIPT), kind, backend], capture_output=True, text=True, cwd=folder, timeout=600
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = (folder / "page" / "index.html").read_text(encoding="utf-8").replace("</td>", " ")
    return ran.stdout, html.unescape(re.sub("<[^>]+>", " ", page))


def line(mark: str) -> str:
    return f"gradients.py:{next(n for n, text in enumerate(LINES, 1) if text.endswith('# ' + mark))}"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("eager", marks=pytest.mark.full)])
def test_programs_with_whole_gradients_are_silent(tmp_path, backend):
    said, page = look(tmp_path, "whole", backend)
    assert "all ranks did the same" in said and "\n1. " not in said
    assert "Nothing was found in the program's own code" in page
    assert re.search(r"\d gradients that to_local and full_tensor take for replicated", said)
    # AOTAutograd traces both halves: nobody sees this gradient
    unseen = rf"to_local\(\) at {line('THE RESULT')} .*cannot tell whether ranks hold the same"
    assert bool(re.search(unseen, page)) == (backend == "aot_eager")


@pytest.mark.slow
def test_gradients_that_ranks_keep_for_themselves_are_named(tmp_path):
    said, page = look(tmp_path, "lost", "eager")
    for text in (said, page):
        assert (
            f"{line('EVERY TOKEN')}: ranks differ: the gradient that comes back to full_tensor() {TAKEN}"
            in text
        )
        assert f"{line('THE ROWS')}: ranks differ: the gradient that comes back to to_local() {TAKEN}" in text
        assert (
            "the gradient of tp.norm.weight is [Partial(sum)], where the parameter is [Replicate()]" in text
        )
    assert "the gradient of table.0.weight is replicated over dimension tp of the mesh" in page
    assert "(2-norm 0.0625 on rank 0, 0.125 on rank 1)" in page and "the parameter is [Shard(dim=0)]" in page
    assert f"{line('THE LOSS')}: dist.all_reduce passes gradients between ranks when compiled" in page
    assert "the gradients of copy.weight, written.weight differ, too" in page
    assert "all ranks did the same" not in page
