"""What was asked against what was got: each switch once with an effect and once without, on two ranks."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from oddrank.look import switches
from oddrank.look.function import look

import labkit
from labkit import torch_compat

SCRIPT = str(Path(__file__).parents[2] / "oddrank" / "tests" / "look" / "scripts" / "switches.py")
INDUCTOR = "torch._inductor.config."
DDP = "DDPOptimizer"
PREFETCH = "set_modules_to_forward_prefetch"
OVERLAP = f"{INDUCTOR}aten_distributed_optimizations.enable_overlap_scheduling"


PLACE = "compiler" if torch_compat.within(torch.__version__, since="2.14") else "distributed"
ONE_RANK = f"torch.{PLACE}.config.compile_on_one_rank"


def case(path: str, kind: str, caches: bool) -> None:
    torch._dynamo.reset()
    # a pass does not run for what comes from a cache
    with torch._inductor.config.patch(force_disable_caches=not caches):
        runpy.run_path(path)["KINDS"][kind]()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """The rows of a kind, on two ranks with a cache of their own."""
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    with labkit.Ranks(2, device="cpu", backend="gloo", timeout=600, stall=None, env=env, quiet=True) as ranks:
        yield lambda kind, caches=False: switches.rows(look(ranks, case, SCRIPT, kind, caches))


CASES = {
    "cut": [(DDP, "did cut Net.forward into 2 graphs; DDP has 2 buckets")],
    "prefetch": [
        (PREFETCH, "did 5 gathers early, of 5 asked for"),
        ("fully_shard", "called 15 times; FSDP2's hook before the forward ran 15 times"),
        ("fully_shard", "did 15 gathers outside of graphs in the run, 0 in graphs"),
    ],
    "late prefetch": [(PREFETCH, "no effect, because its parameters were gathered already")],
    "bypass": [("fully_shard", "bypasses FSDP2's hooks in 1 of 1 modules: called 5 times")],
    "overlap": [(OVERLAP, "did change a graph: before: 4 all_gather.*after: 1 all_gather")],
    "one rank": [
        (
            ONE_RANK,
            "did lookups of coordinates and groups at run time in the graphs: 1.*graphs of ranks are equal",
        ),
        (ONE_RANK, "rank 1 compiled 1, 0 of them"),
    ],
    "no switch": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_a_switch_says_what_it_did_or_why_it_had_no_effect(rows, kind):
    found = rows(kind)
    for switch, said in CASES[kind]:
        got = found[found["switch"] == switch]["got"]
        assert any(re.search(said, one) for one in got), found.to_string()
    if kind == "no switch":  # nobody set one
        assert set(found["switch"]) <= {"torch.compile", "Inductor's cache"}


@pytest.mark.slow
def test_a_pass_that_did_not_run_again_cannot_tell(rows):
    for said in (
        "did change a graph: before: 2 all_gather.*after: 1 all_gather",
        "cannot tell, because every graph came from Inductor's cache",
    ):
        found = rows("bucket", caches=True).set_index("switch")["got"]
        assert re.match(said, found[f"{INDUCTOR}bucket_all_gathers_fx"]), found.to_string()
