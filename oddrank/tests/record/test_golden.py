"""What an engine finds in each program is what the golden tables say; see `engine.found` and `golden/README.md`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import PROGRAMS

HERE = Path(__file__).parent
FAMILY = ".".join(torch.__version__.split(".")[:2])
FAMILIES = ("2.11", "2.13", "2.15")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FAMILY not in FAMILIES, reason=f"the tables are those of torch {', '.join(FAMILIES)}"),
]


def golden(name: str) -> dict[str, Any]:
    """Return what the tables say of a program under this torch, by rank and section."""
    table = json.loads((HERE / "golden" / f"{name}.json").read_text(encoding="utf-8"))
    changed = HERE / "golden" / f"{name}.{FAMILY}.json"
    if changed.exists():
        for rank, sections in json.loads(changed.read_text(encoding="utf-8"))["right"].items():
            table["right"][rank] |= sections
    return table["right"]


def run(ranks: int, names: list[str], folder: Path) -> list[dict[str, Any]]:
    """Run programs under torchrun, all in one process a rank, and return each rank's tables by program."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(HERE / "run_on_ranks.py"), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"rank_{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]


@pytest.fixture(scope="session")
def tables(request, tmp_path_factory):
    """What the engine finds in the programs that were selected: by program, one table a rank."""
    chosen = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    by_name: dict[str, list[dict[str, Any]]] = {}
    for ranks in (1, 2):
        names = [name for name, one in PROGRAMS.items() if one.ranks == ranks and name in chosen]
        each = run(ranks, names, tmp_path_factory.mktemp(f"ranks_{ranks}")) if names else []
        by_name |= {name: [mine[name] for mine in each] for name in names}
    return by_name


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    """Collectives as a multiset."""
    seen: Counter[str] = Counter()
    for row in rows:
        seen[json.dumps({k: v for k, v in row.items() if k != "count"}, sort_keys=True)] += row["count"]
    return seen


def compare(mine: dict[str, Any], right: dict[str, Any]) -> None:
    """Assert that a rank's table is the golden one."""
    assert mine.keys() == right.keys()
    for section in sorted(right.keys() - {"collectives", "counters"}):
        assert mine[section] == right[section], section
    for kind in ("stats", "graph_break"):  # "frames" depends on whether a profiler runs
        assert mine["counters"][kind] == right["counters"][kind], kind
    assert counted(mine["collectives"]) == counted(right["collectives"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_engine_finds_what_the_golden_tables_say(name, tables):
    table = golden(name)
    for rank, mine in enumerate(tables[name]):
        compare(mine, table[str(rank)])


def test_a_forked_rank_finds_what_one_under_torchrun_does():
    labkit = pytest.importorskip("labkit")
    table = golden("spike")
    with labkit.Ranks(2, device="cpu", backend="gloo", timeout=300, quiet=True) as ranks:
        each = ranks.run(_in_a_forked_rank, str(HERE))
    for rank, mine in each.items():
        compare(json.loads(mine), table[str(rank)])


def _in_a_forked_rank(here: str) -> str:
    import json
    import sys

    sys.path.insert(0, here)
    from engine import found
    from programs import PROGRAMS
    from run_on_ranks import measured

    return json.dumps(measured(PROGRAMS["spike"], found))


def test_the_tables_have_the_gates():
    """The line of a collective is the caller's, and a step that runs twice what was compiled once shows 2."""
    lines = (HERE / "programs.py").read_text(encoding="utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("def spike"))
    gate = next(n for n, line in enumerate(lines) if line.endswith("# the gate")) - first
    for rank in ("0", "1"):
        calls = golden("spike")[rank]["collectives"]
        assert [row["count"] for row in calls if row["in_graph"] and row["place"] == f"spike+{gate}"] == [2]
    (compiled,) = golden("runs_twice")["0"]["compiles"]
    assert (compiled["outcome"], compiled["runs"]) == ("graph", 2)
