"""Whether a gate around a collective is still worth it without gradients: the decision table of lesson 02, judged."""

from __future__ import annotations

from labkit import lessons
from labkit.lessons.functional.experiment import agreed, decide
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict

COLLECTIVES = ("all_reduce sum", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast")


@probe
def decided(bench: Bench) -> Seen:
    """The rows of four collectives in the decision table, without gradients: which forms trace, and to which code."""
    return {
        "rows": {
            row["collective"]: row
            for row in agreed(bench.run(decide, lessons.program("functional"), list(COLLECTIVES)))
        }
    }


@judging(decided)
def compiled_code_needs_the_functional_form(seen: Seen) -> Result:
    """Compiled without gradients, each of the four collectives is better in its functional form than in place."""
    rows = seen["rows"]
    gated = [name for name, row in rows.items() if row["gate"] == "yes"]
    alike = [name for name, row in rows.items() if row["same code"] == "yes"]
    return verdict(
        len(gated) == len(rows),
        f"without gradients a gate is worth it for {', '.join(gated) or 'none'}; in place and functional compile to "
        f"the same code for {', '.join(alike) or 'none'}",
    )


@judging(decided)
def all_reduce_needs_a_gate(seen: Seen) -> Result:
    """Compiled without gradients, an all-reduce is better in its functional form than in place, so a gate chooses."""
    row = seen["rows"]["all_reduce sum"]
    same = "the same code" if row["same code"] == "yes" else "other code"
    said = f"all_reduce sum, without gradients: in place and functional compile to {same}"
    return verdict(row["gate"] == "yes", f"{said}; a gate is worth it: {row['gate']}")
