"""The eager trap's guardrail: does a count of operations tell a gate from a broken one?"""

from __future__ import annotations

from typing import Any

import torch

from labkit import lessons
from labkit.contract import assert_in_place
from labkit.contract.eager import dispatched
from labkit.lessons.shared.capture import Capture, calls
from labkit.study.checks import ENFORCED, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset

cliff = lessons.program("cliff")


@probe
def guardrail(bench: Bench) -> Seen:
    """What the guardrail says of an eager all-reduce in place, gated, functional, and functional with a copy back."""
    return bench.run(_guardrail, backend="shm")[0]


def _guardrail() -> dict[str, Any]:
    x = torch.zeros(16, 128)
    paths = {
        "in_place": lambda: cliff.inplace(x),
        "gated": lambda: cliff.gated(x),
        "functional": lambda: cliff.functional(x),
        "copied_back": lambda: x.copy_(cliff.functional(x)),
    }
    found: dict[str, Any] = {}
    with torch.no_grad():
        for name, path in paths.items():
            said = ""
            try:
                assert_in_place(path)
            except AssertionError as error:
                said = str(error)
            found[name] = {"operations": dispatched(path).total(), "says": said}
        for name, form in (("compiled", cliff.gated), ("compiled in place", cliff.inplace)):
            dynamo_reset()
            graphs = Capture(aot=True)
            torch.compile(form, backend=graphs, fullgraph=True)(x)
            found[name] = [call for graph in graphs.forward for call in calls(graph)]
    return found


@judging(guardrail, word=ENFORCED)
def a_count_guards_the_gate(seen: Seen) -> Result:
    """Counted, the comparison passes an eager path in place or gated, and fails one that went functional."""
    quiet = not seen["in_place"]["says"] and not seen["gated"]["says"]
    loud = all("went functional" in seen[name]["says"] for name in ("functional", "copied_back"))
    paths = ("in_place", "gated", "functional", "copied_back")
    counts = ", ".join(f"{name.replace('_', ' ')} {seen[name]['operations']}" for name in paths)
    return verdict(
        quiet and loud,
        f"operations a call: {counts}; the guardrail {'passes' if quiet else 'fails'} the gate and "
        f"{'fails' if loud else 'passes'} a broken one; counted, not timed",
    )


@judging(guardrail, word=ENFORCED)
def the_gate_goes_by_mode(seen: Seen) -> Result:
    """Without gradients the gate works in place in eager; compiled, it is functional, and leaves its input."""
    eager = not seen["gated"]["says"]
    names, in_place = (
        [call.rpartition(".")[2] for call in seen[n]] for n in ("compiled", "compiled in place")
    )
    functional = "all_reduce" in names and "copy_" not in names and "copy_" in in_place
    said = (
        f"without gradients: in eager {'in place' if eager else 'not in place'}; compiled: {', '.join(names)}"
    )
    return verdict(eager and functional, f"{said}; the in-place form: {', '.join(in_place)}")
