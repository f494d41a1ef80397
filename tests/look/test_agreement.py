"""What `oddrank look` counts against torch's own tools, on programs where a count can go wrong."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from oddrank.look.look import together
from oddrank.look.program import watch
from oddrank.look.steps import Options
from oddrank.torch_names import log_to

import labkit
from oddrank import tlparse

# of each program, what every tool counts: graphs, and breaks compiled; then counters' breaks, given up, recompiles
EXPECTED = {
    "loop": (2, 2, 2, 0, 0),
    "given up": (0, 1, 0, 1, 0),
    "recompile": (4, 2, 2, 0, 2),
    "two": (4, 2, 1, 0, 0),
    "generator": (0, 1, 0, 2, 0),  # Dynamo gives up the generator, too, and its trace does not say so
}


def functions(name: str) -> tuple[list, list[int]]:
    """The functions of a program, and the sizes of the inputs that one turn gives them."""
    import torch

    class Block(torch.nn.Module):
        def forward(self, x):
            x = x.sin()
            torch._dynamo.graph_break()
            return x.cos()

    def given_up(x):
        for _ in range(4):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    def printing(x):
        x = x.sin()
        print("in between")
        return x.cos()

    def branching(x):
        x = x + 1
        if x.sum() > 0:
            x = x * 2
        return x

    def items(x):
        for _ in range(2):
            yield x.sin()

    def consuming(x):
        for y in items(x):
            torch._dynamo.graph_break()
            x = x + y
        return x

    block = Block()
    return {
        "generator": ([consuming], [3]),
        "loop": ([torch.nn.Sequential(block, block, block)], [3]),  # four executed breaks, in two compiles
        "given up": ([given_up], [3]),
        "recompile": ([Block()], [3, 4, 5]),
        "two": ([printing, branching], [3]),
    }[name]


def run(name: str, turns: int, counted: Path) -> None:
    import torch
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    called, sizes = functions(name)
    compiled = [torch.compile(fn, backend="eager") for fn in called]
    with torch.no_grad():
        for turn in range(turns):
            for fn in compiled:
                fn(torch.ones(sizes[min(turn, len(sizes) - 1)]))
    counted.write_text(
        json.dumps(
            [
                counters["stats"]["unique_graphs"],
                sum(counters["graph_break"].values()),
                counters["frames"]["total"] - counters["frames"]["ok"],
            ]
        )
    )


@pytest.mark.slow
def test_counts_are_those_of_torchs_own_tools_where_both_count_the_same(tmp_path):
    log, looked, printed, at = tmp_path / "logs" / "rank-0.log", {}, {}, 0
    asked = {"TORCH_LOGS": "graph_breaks,recompiles"}
    log.parent.mkdir()
    with labkit.Ranks(1, device="cpu", quiet=True, env=asked) as one:
        one.run(log_to, str(log), str(log.parent))
        for name in EXPECTED:
            program = (name, 6, tmp_path / f"{name}.json")
            looked[name] = together(list(one.run(watch, run, program, {}, Options(2, 4)).values()))
            text = log.read_text()
            printed[name], at = text[at:], len(text)
    for name, (graphs, breaks, in_counters, given_up, recompiles) in EXPECTED.items():
        counts = looked[name].counts.iloc[0]
        assert list(counts[["graphs", "frames given up", "recompiles"]]) == [graphs, given_up, recompiles], (
            name
        )
        assert sum(not met.compile.startswith("-") for met in looked[name].met) == breaks, name
        assert len(re.findall(r"Graph break (?:in user code|\(user stack)", printed[name])) == breaks, name
        assert len(re.findall("Recompiling function", printed[name])) == recompiles, name
        assert json.loads((tmp_path / f"{name}.json").read_text()) == [graphs, in_counters, given_up], name
    assert looked["loop"].counts["breaks"][0] == 4, "executed breaks, of two that were compiled"

    tool = tlparse.tool()
    assert tool, "tlparse is in the lock"
    subprocess.run([tool, "--all-ranks-html", "--no-browser", "-o", tmp_path / "out", log.parent], check=True)
    for pattern, place in (("dynamo_output_graph_*", 0), ("dynamo_graph_break_reason_*", 1)):
        made = [path for path in Path(tmp_path / "out").rglob(pattern) if path.is_file()]
        assert len(made) == sum(row[place] for row in EXPECTED.values()), pattern
