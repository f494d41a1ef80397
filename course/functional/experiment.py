"""Every collective, eager and compiled: in one graph or not, as which operators, with the same numbers or not."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from course.functional.declared import COLLECTIVES as ABOUT
from course.shared import program as programs
from course.shared.variants import own
from labkit.graphs import record
from labkit.ranks import Ranks, here
from labkit.ranks.output import quietly
from labkit.report import PerRank, Report, provenance

NEEDED = ("sample", "IN_PLACE", "FUNCTIONAL", "forms", "decide")  # what is taken of the program
COMPILERS = ("eager", "aot_eager", "inductor")
UNWAITED = "async, no wait"
LATE = 0.02  # seconds by which all ranks but 0 come late to a collective that nobody waits for

_OPERATOR = re.compile(r"torch\.ops\.(?:_c10d_functional|_c10d_functional_autograd)\.(\w+)|\.(copy_)\(")


def run(
    ranks: Ranks,
    only: Sequence[str] = (),
    *,
    compiler: str = "aot_eager",
    timeout: float | None = 300.0,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Run every collective in each of its forms: in eager, with `fullgraph=True`, and where that fails without it.

    only: beginnings of names, such as ('all_reduce', 'barrier'). compiler: the backend of torch.compile. program: the
    cells of lesson 02, as a module or a mapping such as a notebook's `globals()`; None is the lesson's own. The
    report's first table has one row for each collective and form; `ranks` has what each rank saw; `decision` is the
    decision table of lesson 02, for the collectives that have a functional form. `first` is what the compiled program
    gave on its first call, which compiles it, and `later` on its second. Raises ValueError for a
    collective or a compiler that does not exist, before anything runs, and RankError when a rank fails.

    >>> from course.functional import experiment as collectives
    >>> with Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = collectives.run(ranks, ["all_reduce max"])
    >>> report.frame.loc[:, ["collective", "form", "one graph", "numbers"]]
           collective        form one graph numbers
    0  all_reduce max    in place       yes    same
    1  all_reduce max       async        no    same
    2  all_reduce max  functional       yes    same
    """
    ours = programs.choose("functional", program, NEEDED)
    names = choose(only, ours.code.IN_PLACE)
    if compiler not in COMPILERS:
        raise ValueError(f"unknown compiler {compiler!r}: there is {', '.join(COMPILERS)}")
    found = ranks.run(_measure, ours.code, names, compiler, talk, timeout=timeout)
    decided = [name for name in names if name in ours.code.FUNCTIONAL]
    rows = agreed(ranks.run(quietly, decide, ours.code, decided, timeout=timeout))
    settings = {
        "backend": ranks.backend,
        "device": ranks.device,
        "world_size": ranks.world_size,
        "threads": ranks.threads,
        "compiler": compiler,
        "program": ours.digest,
    }
    report = _report(found, ranks.label, provenance(**settings))
    report.tables["decision"] = pd.DataFrame(rows, columns=None if rows else ["collective"])
    report.notes[:0] = ours.notes
    return report


def choose(only: Sequence[str], names: Iterable[str]) -> tuple[str, ...]:
    """The collectives among `names` that begin with one of `only`, in their order; all of them without.

    Raises ValueError for a beginning that none has.

    >>> choose(["all_reduce", "barrier"], ["all_reduce sum", "broadcast", "all_reduce max", "barrier"])
    ('all_reduce sum', 'all_reduce max', 'barrier')
    """
    for start in only:
        if not any(name.startswith(start) for name in names):
            raise ValueError(f"no collective begins with {start!r}: there is {', '.join(names)}")
    return tuple(name for name in names if not only or name.startswith(tuple(only)))


# --- on a rank ---


def _measure(lesson: Any, names: Sequence[str], compiler: str, talk: bool) -> list[dict[str, Any]]:
    me = here()
    x = lesson.sample()
    rows = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch renames two of these, and says so at each call
        for name in names:
            for form, program in lesson.forms(name).items():
                if talk and me.rank == 0:
                    print(f"{name}, {form}", flush=True)
                rows.append({"collective": name, "form": form} | _look_at(program, form, x, compiler))
                dist.barrier()
    return rows


def decide(lesson: Any, names: Sequence[str]) -> list[dict[str, str]]:
    """On a rank: the rows of these collectives in the decision table, measured with `decide` of lesson 02."""
    return [lesson.decide(name) for name in names]


def _look_at(program: Callable[[Any], Any], form: str, x: Any, compiler: str) -> dict[str, Any]:
    row: dict[str, Any] = {}
    call = _late if form == UNWAITED else _once
    row["eager"], row["error"] = _attempt(call, program, x)
    with record() as rec:
        compiled = torch.compile(own(program), backend=compiler, fullgraph=True)
        row["first"], why = _attempt(call, compiled, x)
    row["one_graph"] = not why
    if why:
        with record() as rec:
            compiled = torch.compile(own(program), backend=compiler)
            row["first"], why = _attempt(call, compiled, x)
            row["failure"] = why
    row["later"], _ = _attempt(call, compiled, x)
    breaks = rec.breaks[rec.breaks["kind"] == "break"]
    first = breaks.iloc[0] if len(breaks) else {"reason": "", "text": ""}
    row |= {"graphs": int((rec.graphs["ops"] > 0).sum()), "breaks": len(breaks)}
    row |= {"reason": str(first["reason"]), "text": str(first["text"])}
    row["operators"] = [op for code in rec.graphs["code"] for op in _operators(code)]
    return row


def _operators(code: str) -> list[str]:
    """The collectives, waits and copies back that a graph holds, in order.

    >>> _operators("a = torch.ops._c10d_functional.all_reduce(x, 'sum', '0')\\nb = x.copy_(a)  # code: x.copy_(y)")
    ['all_reduce', 'copy_']
    """
    lines = (line.partition("#")[0] for line in code.splitlines())
    return [a or b for line in lines for a, b in _OPERATOR.findall(line)]


def _attempt(call: Callable[..., Any], program: Callable[[Any], Any], x: Any) -> tuple[Any, str]:
    """What the program gave, as plain values, and what it said if it raised."""
    try:
        return call(program, x), ""
    except (
        Exception
    ) as error:  # a collective that this backend lacks, or a graph that breaks, is a row of the table
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return None, f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def _once(program: Callable[[Any], Any], x: Any) -> Any:
    return _plain(program(x.clone()))


def _late(program: Callable[[Any], Any], x: Any) -> Any:
    """All ranks but 0 come late, so what rank 0 reads at once cannot be the result; then everyone lets it arrive."""
    dist.barrier()
    if dist.get_rank():
        time.sleep(LATE)
    value = _plain(program(x.clone()))
    time.sleep(5 * LATE)
    dist.barrier()
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


# --- in the kernel ---


def agreed(found: Iterable[Sequence[Mapping[str, str]]]) -> list[dict[str, str]]:
    """Merge the rows of all ranks: a cell holds one value, or what each of them found where they disagree.

    >>> agreed([[{"gate": "no"}], [{"gate": "yes"}]])
    [{'gate': 'no / yes'}]
    """
    return [
        {column: " / ".join(dict.fromkeys(row[column] for row in of)) for column in of[0]}
        for of in zip(*found, strict=True)
    ]


def _report(found: PerRank[list[dict[str, Any]]], label: str, settings: dict[str, Any]) -> Report:
    each = pd.concat(
        [pd.DataFrame(rows).assign(rank=rank) for rank, rows in found.items()], ignore_index=True
    )
    if "failure" not in each:
        each["failure"] = ""
    each["failure"] = each["failure"].fillna("")
    for when in ("first", "later"):
        each[f"same_{when}"] = each[when] == each["eager"]
    each["operators"] = each["operators"].map(", ".join)
    columns = ["rank", *(column for column in each.columns if column != "rank")]
    summary = pd.DataFrame([_row(rows) for _, rows in each.groupby(["collective", "form"], sort=False)])
    for column in ("eager", "first", "later"):
        each[column] = each[column].map(str)
    tables = {"summary": summary, "ranks": each[columns]}
    return Report(
        "collectives",
        ABOUT.title,
        label,
        tables,
        [],
        settings,
        _notes(summary),
        "course.functional.figures:figure",
    )


def _row(rows: pd.DataFrame) -> dict[str, Any]:
    """One row of the summary from what every rank saw of one collective in one form."""
    first = rows.iloc[0]
    refused, failed = rows["error"].any(), rows["failure"].any()
    said = next(filter(None, [*rows["error"], *rows["failure"], *rows["reason"]]), "")
    return {
        "collective": first["collective"],
        "form": first["form"],
        "eager": _across(rows["rank"], rows["eager"], rows["error"]),
        "one graph": "refused"
        if refused
        else "fails"
        if failed
        else _agreed("yes" if one else "no" for one in rows["one_graph"]),
        "graphs": _agreed(rows["graphs"]),
        "in the graph": _agreed(rows["operators"]) or "-",
        "numbers": "-" if refused or failed else _numbers(rows),
        "why": said or "-",
    }


def _numbers(rows: pd.DataFrame) -> str:
    first, later = bool(rows["same_first"].all()), bool(rows["same_later"].all())
    if first and later:
        return "same"
    return "other on the first call" if later else "other later" if first else "other"


def _across(ranks: Any, values: Any, errors: Any) -> str:
    texts = [str(error or _short(value)) for value, error in zip(values, errors, strict=True)]
    if len(set(texts)) == 1:
        return texts[0]
    return "; ".join(f"rank {rank}: {text}" for rank, text in zip(ranks, texts, strict=True))


def _short(value: Any) -> str:
    """Numbers without their '.0'."""
    return re.sub(r"\.0\b", "", str(value))


def _agreed(values: Any) -> Any:
    """One value where the ranks agree, all of them where they do not: hiding a difference would be a lie."""
    unique = list(dict.fromkeys(values))
    return unique[0] if len(unique) == 1 else " / ".join(map(str, unique))


def _notes(summary: pd.DataFrame) -> list[str]:
    notes = []
    for form, rows in summary.groupby("form", sort=False):
        kept = int((rows["one graph"] == "yes").sum())
        notes.append(f"{form}: {kept} of {len(rows)} stay in one graph")
    other = summary[~summary["numbers"].isin(["same", "-"])]
    notes += [
        f"{row['collective']}, {row['form']}: {row['numbers']}: compiled gives other numbers than eager"
        for row in other.to_dict("records")
    ]
    return notes
