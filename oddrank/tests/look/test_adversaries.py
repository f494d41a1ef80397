"""Two DDP modules in one process group: whose gradients a collective carries, and backwards in another order."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "adversaries.py"
LINES = SCRIPT.read_text(encoding="utf-8").splitlines()
DONE, FAILED = 0, 3


def backward(of: str) -> str:
    return f"adversaries.py:{next(n for n, text in enumerate(LINES, 1) if text.endswith(f'# THE {of} BACKWARD'))}"


JUDGE, MAKE = backward("DISCRIMINATOR'S"), backward("GENERATOR'S")
EITHER = "all_reduce [1072] float32 of the gradients of Discriminator or Generator"
CASES = {
    "healthy": (DONE, (), ["all ranks did the same", "8 parameters under DDP are equal"], ["1. "]),
    "alike": (
        DONE,
        (),
        [
            f"{EITHER} on rank 0 at {JUDGE} (update_discriminator); {EITHER} on rank 1 at {MAKE} (update_generator)",
            "gradients of one may have been averaged with those of the other",
        ],
        ["all ranks did the same"],
    ),
    "mixed": (
        FAILED,
        ("--verify",),
        [
            f"rank 0  all_reduce(sum) (1072,) float32 of the gradients of Discriminator at {JUDGE}",
            f"rank 1  all_reduce(sum) (1600,) float32 of the gradients of Generator at {MAKE}",
        ],
        ["all ranks did the same"],
    ),
    "hangs": (
        FAILED,
        ("--stall", "15"),
        [f"all_reduce (1600,) float32 of the gradients of Generator at {MAKE}", "rank 0  never called it"],
        ["of the gradients of Discriminator or"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_a_collective_of_one_of_two_ddp_modules_has_its_name(tmp_path, kind):
    status, words, expected, unsaid = CASES[kind]
    ran = subprocess.run(
        [sys.executable, "-m", "oddrank", "look", "--step", "step", *words, "--out", "page", str(SCRIPT), kind],
        capture_output=True, text=True, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    printed = ran.stdout + ran.stderr
    assert ran.returncode == status, printed
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8").partition("</style>")[2]
    for text in (printed, html.unescape(re.sub("<[^>]+>", " ", page))):
        assert [said for said in expected if said not in text.replace("All ranks", "all ranks")] == [], text
    assert [said for said in unsaid if said in printed] == []
