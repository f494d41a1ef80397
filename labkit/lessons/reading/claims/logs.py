"""What TORCH_LOGS shows, read from a process of its own: the variable counts only as torch is imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from labkit.lessons.shared.timed import all_of, timed, timing_result
from labkit.study.checks import HOLDS, Bench, Result, Seen, judging, probe, verdict

PROGRAM = """
import json, sys, time, torch

@torch.compiler.disable
def hidden(x):
    return x.cos()

def program(x):
    y = x.sin()
    print("a side effect")
    return y.cos()

def twice(x):
    y = x.sin()
    print("a side effect")  # first
    y = hidden(y.cos())  # second
    return y.tan()

def whole(x):
    return x.sin().cos().cos().tan()

def took(run, *args, calls=1):
    began = time.perf_counter()
    for _ in range(calls):
        run(*args)
    return time.perf_counter() - began

def outside(x):
    y = run["whole"](x)
    print("a side effect")
    return y

run = {f.__name__: torch.compile(f, backend="eager") for f in (program, twice, whole)}
calls_s = {}
for name, sizes in (("program", (4, 4, 5, 5)), ("twice", (4,)), ("whole", (4,))):
    print("==", name, file=sys.stderr, flush=True)
    calls_s[name] = [took(run[name], torch.ones(size)) for size in sizes]
x, samples = torch.ones(4), {"inside": [], "outside": []}
for i in range(40):
    for name in list(samples)[:: 1 if i % 2 else -1]:
        samples[name].append(took(run["twice"] if name == "inside" else outside, x, calls=50))
print(json.dumps([calls_s["program"], samples]))
"""
PRINT_AT, HIDDEN_AT = (
    1 + PROGRAM[: PROGRAM.index(f"  # {mark}")].count("\n") for mark in ("first", "second")
)
KINDS = ("graph_breaks", "recompiles", "guards", "graph_code")


@probe
def logs(bench: Bench) -> Seen:
    """Functions with one break, with two and with none, in a new Python with four kinds of logs on; and their times."""
    environment = os.environ | {"TORCH_LOGS": ",".join(KINDS)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise RuntimeError(f"the program ended with {done.returncode}: {done.stderr[-300:]}")
    found: Seen = {}
    parts = re.split(r"^== (\w+)$", done.stderr, flags=re.M)[1:]
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        lines = text.splitlines()
        found[name] = {kind: [line[:300] for line in lines if f"[__{kind}]" in line] for kind in KINDS}
    calls_s, samples = json.loads(done.stdout.splitlines()[-1])
    compared = timed("host only · cpu", {k: tuple(v) for k, v in samples.items()}, "inside", "outside")
    return found | {"calls_s": calls_s, "compared": compared}


def _breaks(lines: list[str]) -> dict[str, str]:
    """The places of breaks, each with what is said of it."""
    parts = re.split(r"Graph break in user code at (\S+)", "\n".join(lines))[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@judging(logs)
def graph_breaks_are_shown(seen: Seen) -> Result:
    """TORCH_LOGS=graph_breaks shows each of two breaks with its place and reason, and nothing of a whole function."""
    found = _breaks(seen["twice"]["graph_breaks"])
    causes = {f"<string>:{PRINT_AT}": "`print`", f"<string>:{HIDDEN_AT}": "disable"}
    named = {*found} == {*causes} and all(cause in found[place] for place, cause in causes.items())
    reasons = {place: re.search(r"Explanation: ([^<\n]{0,60})", said) for place, said in found.items()}
    said = "; ".join(f"{place}: {reason[1] if reason else 'no reason'}" for place, reason in reasons.items())
    none = len(seen["whole"]["graph_breaks"])
    return verdict(
        named and not none, f"{said or 'no line about it'}; of a function without a break {none} lines"
    )


@judging(logs)
def a_slow_function_is_named(seen: Seen) -> Result:
    """With two breaks inside a function is slower than without, and TORCH_LOGS=graph_breaks has both of them."""
    slow = timing_result(seen["compared"], "slower", "any machine")
    return all_of({"slow": slow, "named": graph_breaks_are_shown(seen)})


@judging(logs)
def recompiles_are_shown(seen: Seen) -> Result:
    """TORCH_LOGS=recompiles shows the guard that failed, and nothing where none did."""
    lines = [line for line in seen["program"]["recompiles"] if "expected 4, actual 5" in line]
    said = lines[0].rpartition("] ")[2].strip()[:110] if lines else "no line about it"
    return verdict(bool(lines) and not seen["whole"]["recompiles"], said)


@judging(logs)
def guards_are_shown(seen: Seen) -> Result:
    """TORCH_LOGS=guards shows the guards of each graph, among them one on the first size."""
    lines = seen["program"]["guards"]
    numbers = set(re.findall(r"\[(\d+/\d+)[_\]]", "\n".join(lines)))
    each = numbers == {*_parts(seen["program"]["graph_code"])}
    sized = any("size=[4]" in line for line in lines)
    return verdict(sized and each, f"{len(lines)} lines of guards, of {len(numbers)} graphs")


@judging(logs)
def graph_code_is_shown(seen: Seen) -> Result:
    """TORCH_LOGS=graph_breaks shows each break, and graph_code what each part computes, under a number of its own."""
    parts = {name: _parts(seen[name]["graph_code"]) for name in ("program", "whole")}
    first = [code for number, code in parts["program"].items() if number.endswith("/0")]
    apart = [("sin" in code, "cos" in code) for code in first] == [(True, False), (False, True)]
    together = [("sin" in code, "cos" in code) for code in parts["whole"].values()] == [(True, True)]
    code = verdict(
        apart and together,
        f"{len(parts['program'])} graphs shown, of {len(first)} parts of the function that breaks, sin and cos apart: "
        f"{apart}; of a function without a break {len(parts['whole'])}",
    )
    return all_of({"graph_breaks": graph_breaks_are_shown(seen), "graph_code": code})


def _parts(lines: list[str]) -> dict[str, str]:
    """The code under each number of a part and its compile, such as 0/0."""
    found: dict[str, str] = {}
    for line in lines:
        if number := re.search(r"\[(\d+/\d+)[_\]]", line):
            found[number[1]] = found.get(number[1], "") + line.partition("[__graph_code]")[2]
    return found


@judging(logs)
def health_is_shown(seen: Seen) -> Result:
    """TORCH_LOGS=graph_breaks,recompiles,guards shows each of the three."""
    counts = {kind: len(seen["program"][kind]) for kind in ("graph_breaks", "recompiles", "guards")}
    shown = (graph_breaks_are_shown, recompiles_are_shown, guards_are_shown)
    ok = all(judge(seen).status == HOLDS for judge in shown)
    return verdict(ok, "lines: " + ", ".join(f"{kind} {count}" for kind, count in counts.items()))


@judging(logs)
def churn_is_told_from_breaks(seen: Seen) -> Result:
    """Where another size makes a call slow and further graphs around one break, recompiles and guards name it."""
    places, graphs = _breaks(seen["program"]["graph_breaks"]), _parts(seen["program"]["graph_code"])
    first = [number for number in graphs if number.endswith("/0")]
    named = recompiles_are_shown(seen), guards_are_shown(seen)
    _, steady, slow, again = seen["calls_s"]
    times = slow / min(steady, again)
    return verdict(
        len(places) == 1
        and 0 < len(first) < len(graphs)
        and times > 5
        and all(n.status == HOLDS for n in named),
        f"places that break: {len(places)}; graphs: {len(first)}, then {len(graphs)}, in a call that takes "
        f"{times:.0f} times as long; recompiles: {named[0].measured}; {named[1].measured}",
    )
