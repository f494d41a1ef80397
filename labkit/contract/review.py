"""A review of a module against topic 12's P0 ship checklist and code-review contract.

Each rule is read off the source, and two of them off a run as well where a call is given. A rule that finds nothing
wrong has found nothing *in what it looks at*, and so every row says what it does not look at. Copy this file and
source_facts.py; for `call` also health.py and what it names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.contract.health import compile_health
from labkit.contract.source_facts import Facts, Occurrence, read_facts

__all__ = ["FOUND", "MISSING", "NOTHING", "RULES", "USED", "Finding", "Review", "Rule", "review"]

FOUND, MISSING, USED, NOTHING = "look here", "not seen", "is used", "nothing found"
P0, DO, DONT = "P0 ship checklist", "code review, do", "code review, don't"


@dataclass(frozen=True)
class Rule:
    """One row of the source's lists: what is looked at here, and what a reader still has to look at."""

    name: str
    where: str
    rule: str
    checks: str
    does_not: str
    look: Callable[[Facts], tuple[str, list[Occurrence]]]


@dataclass(frozen=True)
class Finding:
    """A rule on one module: 'look here' with places, 'not seen' or 'is used' for a part, or 'nothing found'."""

    rule: Rule
    status: str
    places: tuple[Occurrence, ...] = ()
    ran: str = ""

    def row(self) -> dict[str, str]:
        """The finding as a row of a table."""
        said = "; ".join(f"line {seen.line} ({seen.function}): {seen.text}" for seen in self.places[:3])
        more = f"; {len(self.places) - 3} more" if len(self.places) > 3 else ""
        return {
            "list": self.rule.where,
            "rule": self.rule.rule,
            "finding": self.status,
            "where": "; ".join(filter(None, [said + more, self.ran])),
            "checks": self.rule.checks,
            "does not check": self.rule.does_not,
        }


@dataclass(frozen=True)
class Review:
    """All findings on a module, in the order of the source's lists."""

    module: str
    findings: tuple[Finding, ...]

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.rule.name == name)

    def rows(self) -> list[dict[str, str]]:
        """The findings as rows: list, rule, finding, where, checks, does not check."""
        return [finding.row() for finding in self.findings]

    def __str__(self) -> str:
        lines = [f"{self.module}: {len(self.findings)} rules of topic 12"]
        for row in self.rows():
            lines.append(f"\n{row['finding']:<14} {row['rule']}  [{row['list']}]")
            lines += [f"{'':<14} {row['where']}"] if row["where"] else []
            lines += [
                f"{'':<14} checks: {row['checks']}",
                f"{'':<14} does not check: {row['does not check']}",
            ]
        return "\n".join(lines)


def review(module: str | Path | ModuleType, call: Callable[[], Any] | None = None) -> Review:
    """Review a module against the P0 checklist and the code-review contract.

    Args:
        module: The path of a Python file, or an imported module. It is read, and not run.
        call: A function without arguments that runs its compiled code once. It is called twice, and its graphs, breaks
            and recompiles go into the rows that are about them. This is for one rank; `assert_same_health` compares
            ranks.

    Returns:
        A finding for each rule.

    Raises:
        ValueError: For something that is no Python module.

    >>> import os, tempfile
    >>> lines = ["import torch.distributed as dist", "def f(x):", "    if dist.get_rank():", "        dist.barrier()"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "mine.py"
    ...     _ = path.write_text("\\n".join(lines))
    ...     found = review(path)["divergence"]
    >>> found.status, found.places[0].line
    ('look here', 4)
    """
    facts = read_facts(module)
    ran, clean = ("", True) if call is None else _run(call)
    findings = []
    for rule in RULES:
        status, places = rule.look(facts)
        measured = ran if rule.name in ("fragmentation", "canary") else ""
        if measured and not clean:
            status = FOUND
        elif measured and rule.name == "canary":
            status = USED
        findings.append(Finding(rule, status, tuple(places), measured))
    name = module.__name__ if isinstance(module, ModuleType) else Path(module).name
    return Review(name, tuple(findings))


def _run(call: Callable[[], Any]) -> tuple[str, bool]:
    with compile_health() as first:
        call()
    with compile_health() as steady:
        call()
    said = f"ran: {first.graphs} graphs at first, then {steady.breaks} breaks and {steady.recompiles} recompiles a call"
    if first.sites:
        said += f", first break: {first.sites[0]}"
    return said, first.graphs == 1 and not first.sites and steady.breaks == steady.recompiles == 0


def _places(found: list[Occurrence]) -> tuple[str, list[Occurrence]]:
    return (FOUND if found else NOTHING), found


def _uses(*names: str) -> Callable[[Facts], tuple[str, list[Occurrence]]]:
    return lambda facts: (USED if facts.names & set(names) else MISSING, [])


def _hidden(facts: Facts) -> tuple[str, list[Occurrence]]:
    hidden = {name for name, function in facts.functions.items() if function.disabled}
    return _places([seen for seen in facts.collectives if seen.function in hidden])


def _ungated(facts: Facts) -> tuple[str, list[Occurrence]]:
    always = facts.compiled()  # a compiled function is the gate itself where nobody calls it otherwise
    return _places(
        [
            s
            for s in facts.functional
            if s.function == "module" or not (facts.functions[s.function].gated or s.function in always)
        ]
    )


def _impure(facts: Facts) -> tuple[str, list[Occurrence]]:
    compiled = facts.compiled()
    return _places([seen for seen in [*facts.effects, *facts.works] if seen.function in compiled])


def _data(facts: Facts) -> tuple[str, list[Occurrence]]:
    return _places([seen for seen in facts.under_data if seen not in facts.under_rank])


def _mutated(facts: Facts) -> tuple[str, list[Occurrence]]:
    return (USED, []) if "Fingerprints" in facts.names else _places(facts.mutations)


def _crash(facts: Facts) -> tuple[str, list[Occurrence]]:
    parts = {"Watchdog", "Heartbeat", "crash_after", "dump_traceback_later"}
    return (USED if facts.names & parts or facts.timeouts else MISSING), []


_ORDER = "the order at run time, shapes, dtypes, a rank under another name: Ranks(check='collectives') does"
RULES: tuple[Rule, ...] = (
    Rule("divergence", P0, "no rank divergence around collectives",
         "collectives under (or behind a return under) an `if` on a rank, the environment or a host's name", _ORDER,
         lambda facts: _places(facts.under_rank)),
    Rule("fragmentation", P0, "no graph fragmentation by collectives",
         "collectives in functions that torch.compiler.disable wraps; with `call`, graphs and breaks",
         "functions that another module wraps; breaks for other reasons, unless `call` is given", _hidden),
    Rule("crash", P0, "crash rather than hang, and trip on drift",
         "that a watchdog, a heartbeat, crash_after or a group's timeout is used",
         "that they are on, and their windows sensible", _crash),
    Rule("warmup", P0, "warmup in lockstep", "that warm_up or sealed is used",
         "that it takes the path of inference, with the shapes and flags that are served", _uses("warm_up", "sealed")),
    Rule("canary", P0, "the regression canary stays green",
         "that compile health or fullgraph=True is used; with `call`, 1 graph, 0 breaks, 0 recompiles",
         "that something runs it every day", _uses("compile_health", "assert_same_health", "fullgraph=True")),
    Rule("spmd", DO, "the same inputs, branches and collectives in a group",
         "collectives under an `if` on a tensor's values (.item(), .sum(), ...)",
         "branches on values that got there by another way; inputs: InputDigests", _data),
    Rule("gate", DO, "functional collectives only while compiling",
         "functional collectives in functions that neither ask is_compiling() nor are compiled here",
         "whether a compiled function is also called in eager: assert_in_place", _ungated),
    Rule("pure", DO, "the compiled region is tensor-pure",
         "print, logging and async_op=True in functions that are compiled here, and in those that they call here",
         "what functions of other modules do, host callbacks, and process groups that are passed in", _impure),
    Rule("phases", DO, "optional phases explicit, observed calls equal expected ones",
         "that a Plan is used, or executing", "that the plan is right: executing raises where it is not",
         _uses("Plan", "executing", "announce", "agree")),
    Rule("preflight", DO, "validate before peers are committed", "that preflight is used",
         "that it stands before every header", _uses("preflight")),
    Rule("flags", DONT, "conditional collectives behind a rank's own flags",
         "as the first row; flags that are compared (assert_parity) still count as a finding",
         "flags whose names say nothing of a rank, such as self.recompute",
         lambda facts: _places(facts.under_rank)),
    Rule("disable", DONT, "collectives wrapped in disable inside hot paths", "as the second row, by the source only",
         "which paths are hot", _hidden),
    Rule("shapes", DONT, "rank-dependent shapes, data-dependent branches in compiled regions",
         "data-dependent branches around collectives, as above", "shapes: let the plan carry them", _data),
    Rule("mutation", DONT, "weights changed at run time without synchronization",
         "assignments to weights, in-place calls on them and load_state_dict, where no Fingerprints are used",
         "changes through another name or another module; Fingerprints that are never checked", _mutated),
)  # fmt: skip
