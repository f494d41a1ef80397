"""What tests share: a run would pass without it, and take minutes longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from started_processes import PREFORK

import labkit


def test_zygotes_are_forks_of_one_process_also_of_a_process_that_has_compiled(monkeypatch):
    if not os.path.exists(PREFORK):
        pytest.skip("a run in one or two processes has none")
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    cache_dir()  # names its folder in the environment, as a first compile does
    assert "TORCHINDUCTOR_CACHE_DIR" in os.environ
    with labkit.Ranks(1, device="cpu", backend="fake", quiet=True) as ranks:
        zygote = ranks.run(os.getppid)[0]
    assert f"\0-m\0prefork\0{PREFORK}\0" in Path(f"/proc/{zygote}/cmdline").read_text()
