"""Guards: what compiled code depends on, and what makes it compile again."""

from __future__ import annotations

import torch

from labkit import lessons
from labkit.graphs import record
from labkit.lessons.guards.experiment import GAVE_UP
from labkit.lessons.shared.capture import Capture
from labkit.lessons.shared.outcomes import all_of
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset


@probe
def recompiles(bench: Bench) -> Seen:
    """How many graphs there are after each call, while a size, a number, a global or nothing changes."""
    return bench.run(_recompiles)[0]


SCALE = 2.0


def _recompiles() -> Seen:
    def f(x, n=0):
        return (x + n).sin() * x.shape[0]

    def reads_a_global(x):
        return x * SCALE

    def talks(x, n):
        y = x + n
        print("", end="")
        return y.sin()

    def after_each(function, calls, before=None, **options):
        dynamo_reset()
        graphs, counts, same = Capture(), [], []
        run = torch.compile(function, backend=graphs, **options)
        with torch.no_grad(), record() as rec:
            for arguments in calls:
                if before:
                    before(arguments)
                same.append(torch.equal(run(*arguments) + 0, function(*arguments) + 0))
                counts.append(len(graphs.dynamo))
        symbolic = any(
            type(s).__name__ == "SymInt"
            for g in graphs.dynamo
            for node in g.graph.nodes
            if node.op == "placeholder" and hasattr(node.meta.get("example_value"), "shape")
            for s in node.meta["example_value"].shape
        )
        return {
            "counts": counts,
            "symbolic": symbolic,
            "same": all(same),
            "ints": [a for node in graphs.dynamo[0].graph.nodes for a in node.args if type(a) is int],
            "reasons": [str(reason) for reason in rec.recompiles["reason"]],
        }

    def sizes(*rows):
        return [(torch.ones(n, 3),) for n in rows]

    def change_global(arguments):
        globals()["SCALE"] = float(arguments[0].sum())

    found: Seen = {
        "first_two": after_each(f, sizes(4, 4)),
        "sizes": after_each(f, sizes(4, 5, 6, 7)),
        "dynamic": after_each(f, sizes(4, 5, 6, 7), dynamic=True),
        "numbers": after_each(f, [(torch.ones(2), n) for n in (3, 3, 4)]),
        "flags": after_each(f, [(torch.ones(2), n) for n in (True, True, False)]),
        "talks": after_each(talks, [(torch.ones(2), n) for n in (3, 4)]),
        "global": after_each(reads_a_global, [(torch.ones(2) * n,) for n in (1, 1, 2)], change_global),
    }
    globals()["SCALE"] = 2.0
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
def fixes_shapes_and_values(seen: Seen) -> Result:
    """The first graph has no symbol for a size, and holds size and number as constants; another one compiles anew."""
    ints, counts = seen["numbers"]["ints"], seen["numbers"]["counts"]
    said = (
        f"constants in the first graph for the number 3 and two rows: {ints}, graphs after 3, 3, 4: {counts}"
    )
    return all_of(static_by_default(seen), verdict(ints == [3, 2] and counts == [1, 1, 2], said))


@judging(recompiles)
def specializes_and_guards(seen: Seen) -> Result:
    """The first compile fixes sizes and numbers, and a guard on each, which fails by name, is what compiles again."""
    return all_of(fixes_shapes_and_values(seen), a_failed_guard_recompiles(seen))


@judging(recompiles)
def turns_dynamic_on_variation(seen: Seen) -> Result:
    """After a size has varied, the next compile takes it as a symbol and later sizes compile nothing."""
    counts = seen["sizes"]["counts"]
    return verdict(
        counts == [1, 2, 2, 2] and seen["sizes"]["symbolic"], f"graphs after sizes 4, 5, 6, 7: {counts}"
    )


@judging(recompiles)
def a_failed_guard_recompiles(seen: Seen) -> Result:
    """A guard on a size, and one on a number, that fails is named as the reason of a recompile, which makes a graph."""
    sizes, numbers = ("; ".join(seen[name]["reasons"]) for name in ("sizes", "numbers"))
    named = "4" in sizes and "5" in sizes and "n == 3" in numbers
    made = seen["sizes"]["counts"][:2] == [1, 2] and seen["numbers"]["counts"] == [1, 1, 2]
    return verdict(named and made, f"guards that failed: {sizes or 'none'}; {numbers or 'none'}")


@judging(recompiles)
def other_values_recompile(seen: Seen) -> Result:
    """Changing a value that is no tensor (a number, a flag, a global) compiles again, and the same value does not."""
    which = {name: seen[name]["counts"] for name in ("numbers", "flags", "global")}
    said = ", ".join(f"{name} {counts}" for name, counts in which.items())
    return verdict(
        all(counts == [1, 1, 2] for counts in which.values()),
        f"graphs after a value, the same and another: {said}",
    )


@judging(recompiles)
def runtime_values_are_normal(seen: Seen) -> Result:
    """Other values fail a guard and compile again, a print breaks; every call gives eager's numbers all the same."""
    broken = seen["talks"]["counts"]
    same = all(seen[name]["same"] for name in ("numbers", "flags", "global", "talks"))
    said = f"graphs around a print: {broken}; numbers {'the same' if same else 'not the same'}"
    again = other_values_recompile(seen), a_failed_guard_recompiles(seen)
    return all_of(*again, verdict(1 < broken[0] < broken[1] and same, said))


@judging(recompiles)
def static_unless_asked(seen: Seen) -> Result:
    """Without dynamic=True every size compiles anew and no graph has a symbol; with it other sizes compile nothing."""
    asked, default = seen["dynamic"]["counts"], seen["sizes"]["counts"]
    symbol = seen["sizes"]["symbolic"]
    said = f"graphs after sizes 4, 5, 6, 7: {asked} with dynamic=True, {default} without"
    if symbol:
        said += ", where torch takes the size as a symbol by itself; dynamic=False is what keeps sizes fixed"
    return verdict(asked == [1, 1, 1, 1] and default == [1, 2, 3, 4] and not symbol, said)


@probe
def churn(bench: Bench) -> Seen:
    """A sweep of inputs, and ten lengths with and without a loop over them: graphs, and calls without compiled code."""
    found = bench.run(_churn)
    return {**found[0], "other_rank": found[1]["looped"]}


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

    lengths = ("sequence length", range(8, 88, 8))
    swept = ("sequence length", "batch", "int attribute", "float argument", "thread count")
    return {
        "sweep": {name: walked(program.Layer, name, None)["counts"] for name in swept},
        "default": walked(program.Layer, *lengths),
        "looped": walked(looped, *lengths),
        "frozen": walked(looped, lengths[0], [16] * 10),
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
    """Varied one at a time, the inputs of a layer compile it again, not all as often, and the same value never does."""
    sweep = {name: counts[-1] for name, counts in seen["sweep"].items()}
    said = ", ".join(f"{name} {n}" for name, n in sweep.items())
    again = [name for name, counts in seen["sweep"].items() if counts[:2] != [1, 1]]
    return verdict(
        len(set(sweep.values())) > 1 and sweep["sequence length"] > 1 and not again,
        f"graphs after a sweep: {said}; compiled for the first value once more: {', '.join(again) or 'none'}",
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
    """On every rank Dynamo gives up on a length that a loop reads unless it is frozen; another length may vary."""
    found, other, frozen, free = (seen[name] for name in ("looped", "other_rank", "frozen", "default"))
    return verdict(
        found == other and found["gave_up"] > 0 and free["gave_up"] == 0 and frozen["counts"][-1] == 1,
        f"calls without compiled code of {found['values']} lengths: {found['gave_up']} and {other['gave_up']} by rank "
        f"where a loop reads the length, {free['gave_up']} where none does; graphs with one length: "
        f"{frozen['counts'][-1]}",
    )
