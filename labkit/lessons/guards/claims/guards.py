"""Guards: what compiled code depends on, and what makes it compile again."""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit import lessons
from labkit.graphs import record
from labkit.lessons.guards.experiment import GAVE_UP
from labkit.lessons.shared.capture import Capture
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol


@probe
def recompiles(bench: Bench) -> Seen:
    """How many graphs there are after each call, while a size, a number, a global or nothing changes."""
    found = bench.run(_recompiles)
    mine = found[0]
    mine["other_rank"] = found[1]["collective_one_change"]
    return mine


SCALE = 2.0


def _recompiles() -> Seen:
    def f(x, n=0):
        return (x + n).sin() * x.shape[0]

    def reads_a_global(x):
        return x * SCALE

    def communicates(x):
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD)

    def after_each(function, calls, before=None, **options):
        dynamo_reset()
        graphs, counts = Capture(), []
        run = torch.compile(function, backend=graphs, **options)
        for arguments in calls:
            if before is not None:
                before(arguments)
            with torch.no_grad():
                run(*arguments) + 0
            counts.append(len(graphs.dynamo))
        symbolic = any(
            type(s).__name__ == "SymInt"
            for g in graphs.dynamo
            for node in g.graph.nodes
            if node.op == "placeholder" and hasattr(node.meta.get("example_value"), "shape")
            for s in node.meta["example_value"].shape
        )
        return {"counts": counts, "symbolic": symbolic}

    def sizes(*rows):
        return [(torch.ones(n, 3),) for n in rows]

    def change_global(arguments):
        globals()["SCALE"] = float(arguments[0].sum())

    found: Seen = {
        "same": after_each(f, sizes(4, 4, 4, 4)),
        "first_two": after_each(f, sizes(4, 4)),
        "sizes": after_each(f, sizes(4, 5, 6, 7)),
        "dynamic": after_each(f, sizes(4, 5, 6, 7), dynamic=True),
        "numbers": after_each(f, [(torch.ones(2), n) for n in (3, 4)]),
        "flags": after_each(f, [(torch.ones(2), n) for n in (True, False)]),
        "global": after_each(reads_a_global, [(torch.ones(2) * n,) for n in (1, 2)], change_global),
        "collective_same": after_each(communicates, sizes(4, 4, 4, 4)),
        "collective_one_change": after_each(communicates, sizes(4, 4, 6, 6)),
    }
    globals()["SCALE"] = 2.0
    dynamo_reset()
    run = torch.compile(f, backend=Capture())
    run(torch.ones(4, 3))
    with record() as rec:
        run(torch.ones(5, 3))
    found["reasons"] = [str(reason) for reason in rec.recompiles["reason"]]
    return found


@judging(recompiles)
def static_by_default(seen: Seen) -> Result:
    """The first compile fixes the sizes that it sees."""
    fixed = seen["first_two"]["counts"] == [1, 1] and not seen["first_two"]["symbolic"]
    again = seen["sizes"]["counts"][:2] == [1, 2]
    return verdict(
        fixed and again, f"graphs after sizes 4, 5: {seen['sizes']['counts'][:2]}; the first has no symbols"
    )


@judging(recompiles)
def turns_dynamic_on_variation(seen: Seen) -> Result:
    """After a size has varied, the next compile takes it as a symbol and later sizes compile nothing."""
    counts = seen["sizes"]["counts"]
    return verdict(
        counts == [1, 2, 2, 2] and seen["sizes"]["symbolic"], f"graphs after sizes 4, 5, 6, 7: {counts}"
    )


@judging(recompiles)
def a_failed_guard_recompiles(seen: Seen) -> Result:
    """A recompile is caused by a failed guard, which names what differs."""
    reasons = seen["reasons"]
    return verdict(
        len(reasons) == 1 and "4" in reasons[0] and "5" in reasons[0],
        reasons[0] if reasons else "no recompile",
    )


@judging(recompiles)
def other_values_recompile(seen: Seen) -> Result:
    """Changing a value that is no tensor (a number, a flag, a global) compiles again."""
    which = {name: seen[name]["counts"][-1] > 1 for name in ("numbers", "flags", "global")}
    return verdict(
        all(which.values()),
        "compiled again for " + (", ".join(name for name, again in which.items() if again) or "none of them"),
    )


@judging(recompiles)
def static_unless_asked(seen: Seen) -> Result:
    """Without dynamic=True every size compiles anew and no graph has a symbol; with it other sizes compile nothing."""
    asked, default = seen["dynamic"]["counts"], seen["sizes"]["counts"]
    symbol = seen["sizes"]["symbolic"]
    said = f"graphs after sizes 4, 5, 6, 7: {asked} with dynamic=True, {default} without"
    if symbol:
        said += ", where torch takes the size as a symbol by itself; dynamic=False is what keeps sizes fixed"
    return verdict(asked == [1, 1, 1, 1] and default == [1, 2, 3, 4] and not symbol, said)


@judging(recompiles)
def fixed_shapes_never_recompile(seen: Seen) -> Result:
    """Repeated calls with fixed shapes compile nothing after the first."""
    counts = seen["same"]["counts"] + seen["collective_same"]["counts"]
    return verdict(set(counts) == {1}, f"graphs after each of 8 calls: {counts}")


@judging(recompiles)
def one_change_one_recompile(seen: Seen) -> Result:
    """One dimension that changes alike on all ranks costs at most one recompile, and the collectives still pair."""
    one, other = seen["collective_one_change"]["counts"], seen["other_rank"]["counts"]
    return verdict(one == other and one[-1] <= 2, f"graphs after sizes 4, 4, 6, 6: {one} and {other}")


@probe
def churn(bench: Bench) -> Seen:
    """Ten different lengths and ten values of a module's number: compiles after each call, and calls without any."""
    return bench.run(_churn)[0]


def _churn() -> Seen:
    def rows_of_it(self, x, *arguments):  # type: ignore[no-untyped-def]
        for _ in range(x.shape[1] // 8):  # a loop over a size: it has to know the number
            x = x.sin()
        return x

    program = lessons.program("guards")

    def looped():  # type: ignore[no-untyped-def]
        return type("Looped", (program.Layer,), {"forward": rows_of_it})()

    def walked(make, dimension, values, policy="default"):  # type: ignore[no-untyped-def]
        rows = program.walk(make, dimension, policy, values)
        states = [row["state"] for row in rows]
        return {
            "counts": [row["graphs"] for row in rows],
            "gave_up": states.count(GAVE_UP),
            "values": len(states),
        }

    lengths, numbers = ("sequence length", range(8, 88, 8)), ("int attribute", range(1, 11))
    swept = ("sequence length", "batch", "int attribute", "float argument", "thread count")
    return {
        "sweep": {name: walked(program.Layer, name, None)["counts"] for name in swept},
        "default": walked(program.Layer, *lengths),
        "looped": walked(looped, *lengths),
        "attribute": walked(program.Layer, *numbers),
    }


def _every_value_compiles(found: Seen) -> bool:
    """Each new value compiled, up to the limit, and the rest ran without compiled code."""
    counts = found["counts"]
    compiled = counts[-1]
    return (
        compiled > 2
        and counts[:compiled] == list(range(1, compiled + 1))
        and compiled + found["gave_up"] == found["values"]
    )


@judging(churn)
def a_sweep_names_the_dimension(seen: Seen) -> Result:
    """Varied one at a time, some inputs of a layer compile it again and again, some once, and some never."""
    sweep = {name: counts[-1] for name, counts in seen["sweep"].items()}
    said = ", ".join(f"{name} {n}" for name, n in sweep.items())
    return verdict(
        len(set(sweep.values())) > 1 and sweep["sequence length"] > 1, f"graphs after a sweep: {said}"
    )


@judging(churn)
def dynamic_may_fail(seen: Seen) -> Result:
    """A program that needs to know a size compiles for every one, though Dynamo tries to go dynamic."""
    found = seen["looped"]
    return verdict(
        _every_value_compiles(found) and seen["default"]["counts"][-1] == 2,
        f"graphs after ten lengths, looped over: {found['counts']}, then {found['gave_up']} calls in eager",
    )


@judging(churn)
def some_must_be_frozen(seen: Seen) -> Result:
    """Something that varies makes Dynamo give up, while other things may vary."""
    found, free = seen["attribute"], seen["default"]
    return verdict(
        found["gave_up"] > 0 and free["gave_up"] == 0,
        f"calls without compiled code: {found['gave_up']} of {found['values']} for a number on the module, "
        f"{free['gave_up']} for lengths",
    )
