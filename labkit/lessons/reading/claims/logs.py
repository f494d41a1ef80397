"""What TORCH_LOGS shows, read from a process of its own: the variable counts only as torch is imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from labkit.study.checks import HOLDS, Bench, Result, Seen, judging, probe, verdict

PROGRAM = """
import time, torch

def program(x):
    y = x.sin()
    print("a side effect")
    return y.cos()

run = torch.compile(program, backend="eager")
took = []
for size in (4, 4, 5, 5):
    began = time.perf_counter()
    run(torch.ones(size))
    took.append(time.perf_counter() - began)
print(*took)
"""
PRINT_AT = 1 + PROGRAM[: PROGRAM.index("print")].count("\n")


@probe
def logs(bench: Bench) -> Seen:
    """A function with a print and two sizes, in a new Python with four kinds of logs on."""
    environment = os.environ | {"TORCH_LOGS": "graph_breaks,recompiles,guards,graph_code"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise RuntimeError(f"the program ended with {done.returncode}: {done.stderr[-300:]}")
    lines = done.stderr.splitlines()
    found: Seen = {kind: [line[:300] for line in lines if f"[__{kind}]" in line] for kind in KINDS}
    return found | {"calls_s": [float(took) for took in done.stdout.splitlines()[-1].split()]}


KINDS = ("graph_breaks", "recompiles", "guards", "graph_code")


@judging(logs)
def graph_breaks_are_shown(seen: Seen) -> Result:
    """TORCH_LOGS=graph_breaks shows each break with its reason."""
    lines = [line.partition("[__graph_breaks]")[2].strip()[:110] for line in seen["graph_breaks"]]
    places = [line for line in lines if line.startswith("Graph break in user code")]
    reasons = [line for line in lines if "trace builtin" in line and "`print`" in line]
    placed = len(places) == 1 and places[0].endswith(f"<string>:{PRINT_AT}")
    return verdict(placed and bool(reasons), "; ".join([*places, *reasons[:1]]) or "no line about it")


@judging(logs)
def recompiles_are_shown(seen: Seen) -> Result:
    """TORCH_LOGS=recompiles shows the guard that failed."""
    lines = [line for line in seen["recompiles"] if "expected 4, actual 5" in line]
    return verdict(bool(lines), lines[0].rpartition("] ")[2].strip()[:110] if lines else "no line about it")


@judging(logs)
def guards_are_shown(seen: Seen) -> Result:
    """TORCH_LOGS=guards shows the guards that were installed."""
    return verdict(
        any("size=[4]" in line for line in seen["guards"]), f"{len(seen['guards'])} lines of guards"
    )


@judging(logs)
def graph_code_is_shown(seen: Seen) -> Result:
    """TORCH_LOGS=graph_code shows every graph with a number for its part of the code, so that fragments are told."""
    lines = [line for line in seen["graph_code"] if "TRACED GRAPH" in line]
    parts = {found[1] for line in lines if (found := re.search(r"\[(\d+)/", line))}
    breaks = graph_breaks_are_shown(seen).status == HOLDS
    return verdict(
        breaks and len(parts) > 1, f"{len(lines)} graphs shown, of {len(parts)} parts of the function"
    )


@judging(logs)
def health_is_shown(seen: Seen) -> Result:
    """TORCH_LOGS=graph_breaks,recompiles,guards shows each of the three."""
    counts = {kind: len(seen[kind]) for kind in ("graph_breaks", "recompiles", "guards")}
    shown = (graph_breaks_are_shown, recompiles_are_shown, guards_are_shown)
    ok = all(judge(seen).status == HOLDS for judge in shown)
    return verdict(ok, "lines: " + ", ".join(f"{kind} {count}" for kind, count in counts.items()))


@judging(logs)
def churn_is_told_from_breaks(seen: Seen) -> Result:
    """Where another size makes a call slow and further graphs around one break, recompiles and guards name it."""
    places = {
        found[1] for line in seen["graph_breaks"] if (found := re.search(r"in user code at (\S+)", line))
    }
    traced = [line for line in seen["graph_code"] if "TRACED GRAPH" in line]
    first = [line for line in traced if re.search(r"\[\d+/0[_\]]", line)]
    named = recompiles_are_shown(seen), guards_are_shown(seen)
    _, steady, slow, again = seen["calls_s"]
    times = slow / min(steady, again)
    return verdict(
        len(places) == 1
        and 0 < len(first) < len(traced)
        and times > 5
        and all(n.status == HOLDS for n in named),
        f"places that break: {len(places)}; graphs: {len(first)}, then {len(traced)}, in a call that takes "
        f"{times:.0f} times as long; recompiles: {named[0].measured}; {named[1].measured}",
    )
