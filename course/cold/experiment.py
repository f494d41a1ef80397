"""Cold and warm: how long each way to compiled code takes a fresh process, by phase, and what first requests see."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from course.cold.declared import COLD as ABOUT
from course.cold.phases import PHASES
from course.shared.options import chosen
from course.shared.program import Program, choose
from course.shared.sweep import Sweep
from labkit import files, hardware, torch_compat
from labkit.experiments.options import on_cpu
from labkit.ranks import Ranks
from labkit.report import Report, provenance
from labkit.timing import Verdict, by_slowest, compare

__all__ = ["AOT", "AOTI", "ARTIFACTS", "COLD", "DISK", "FORMS", "SKEW", "machine", "phases", "ready", "run"]

VIEW = "course.cold.figures:figure"
MACHINE, BUILD, EAGER, COLD, DISK = "this machine", "built ahead", "eager", "cold", "second process"
ARTIFACTS, AOT, AOTI = "cache artifacts", "aot_compile", "AOTInductor"
BLOCKS, NESTED, SKEW, SHIPPED = "block by block", "nested region", "one rank cold", "once, and shipped"


def eager(model: Any, place: Path) -> Any:
    """The way that compiles nothing."""
    return model


def nested(model: Any, place: Path) -> Any:
    """The way that marks the blocks as nested regions, each compiled once."""
    kind = type(model.blocks[0])
    kind.forward = torch.compiler.nested_compile_region(kind.forward)
    return torch.compile(model)


# a way, ours or a name of the program, and the folder that the caches are filled from
FORMS: dict[str, tuple[Any, str]] = {
    EAGER: (eager, "machine"),
    COLD: ("compiled", "machine"),
    DISK: ("compiled", "caches"),
    ARTIFACTS: ("from_artifacts", "machine"),
    AOT: ("from_aot", "machine"),
    AOTI: ("from_package", "machine"),
    SKEW: ("compiled", "caches"),  # on rank 0 alone
    SHIPPED: ("shipped", "machine"),
    BLOCKS: ("by_blocks", "machine"),
    NESTED: (nested, "machine"),
}
NEEDED = ("check_cpu", "build", "serve", "leave")  # what is taken of the program, and the ways
USUAL = tuple(form for form in FORMS if form != NESTED)
NEEDS = {DISK: COLD, ARTIFACTS: COLD, SKEW: COLD, AOT: BUILD, AOTI: BUILD}
AHEAD = {ARTIFACTS: "artifacts", AOT: "model.aot", AOTI: "model.pt2"}
TOLERANCE = 1e-4
# a loaded package keeps the interpreter's lock while it waits, and gloo's own threads need it to be done
GLOO = "AOTInductor's package holds the interpreter's lock while it waits for gloo's collectives, and neither ends"


def run(
    ranks: Ranks,
    form: Sequence[str] = (),
    *,
    requests: int = 100,
    budget: float | None = None,
    rounds: int = 1,
    full: bool = False,
    fresh: bool = False,
    folder: str | Path | None = None,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Start fresh ranks for each way to compiled code, and time them until they have answered their first requests.

    Every rank of every way is a process that has imported torch and compiled nothing, with
    cache folders of its own, as if it were a machine of its own; the reader's caches are not touched. What is done once
    on a machine (libraries that try out its vector instructions) is timed by itself, once, and kept in the reader's
    labkit folder.

    Args:
        ranks: the ranks whose number and backend the fresh ones get.
        form: which ways, all but nested regions by default; what they start from is made as well.
        requests: how many are timed, the first included.
        budget: the seconds that a rank may take until it is ready; the table `ready` then says which ways fit.
        rounds: how often each way is taken; below eight no verdict is possible.
        full: every way, eight rounds.
        program: the cells of lesson 12, as a module or a mapping such as a notebook's `globals()`; None is the lesson's
            own.

    Returns:
        The report; times are seconds.

    Raises:
        ValueError: before any rank is started, for a form that does not exist or a number out of range, and where there
            is no C++ compiler.
        RankError: a rank fails.

    >>> import tempfile
    >>> with Ranks(2, device="cpu", backend="shm", quiet=True) as ranks, tempfile.TemporaryDirectory() as folder:
    ...     report = run(ranks, ["eager"], requests=8, folder=folder)
    >>> list(report.tables["ready"]["builds"]), len(report.tables["latency"])
    ([0], 16)
    """
    forms = chosen(form, FORMS, "form") if form else list(FORMS if full else USUAL)
    rounds = max(rounds, 8) if full else rounds
    if not isinstance(rounds, int) or not 1 <= rounds <= 100:
        raise ValueError(f"rounds is how often each way is taken, from 1 to 100, got {rounds!r}")
    if not isinstance(requests, int) or not 4 <= requests <= 100_000:
        raise ValueError(f"requests must be a whole number from 4 to 100000, got {requests!r}")
    if budget is not None and not 0 < budget < float("inf"):
        raise ValueError(f"budget must be a positive number of seconds, got {budget!r}")
    _check(ranks)
    ours = choose("cold", program, (*NEEDED, *(way for way, _ in FORMS.values() if isinstance(way, str))))
    left_out = []
    if ranks.backend == "gloo" and AOTI in forms:
        if AOTI in form:
            raise ValueError(f"{AOTI} cannot be served on gloo: {GLOO}; take ranks on shm")
        forms, left_out = [f for f in forms if f != AOTI], [f"left out: {GLOO}"]
    settings = {
        "backend": ranks.backend, "device": "cpu", "world_size": ranks.world_size, "threads": ranks.threads,
        "requests": requests, "rounds": rounds, "program": ours.digest,
    }  # fmt: skip
    sweep = Sweep("cold", settings, folder, fresh, talk)
    place = sweep.place / "made"

    def measure(point: tuple[str, int]) -> list[dict[str, Any]]:
        what, i = point
        if what == MACHINE:
            if forms == [EAGER]:  # nothing will be built
                (place / "machine").mkdir(parents=True, exist_ok=True)
                return [{"what": MACHINE, "seconds": 0.0, "builds": 0, "date": provenance()["date"]}]
            return [{"what": MACHINE, **machine(place, ours)}]
        with Ranks(ranks.world_size, "cpu", ranks.backend, threads=ranks.threads, quiet=True) as own:
            if what == BUILD:
                spent = own.run(ours.code.build, place, timeout=600)
                return [
                    {"what": BUILD, "rank": rank, "form": form, "seconds": spent[rank], "bytes": _size(place, form)}
                    for rank, form in enumerate((AOT, AOTI))
                ]  # fmt: skip
            found = own.run(_serve, ours.code, what, place, requests, timeout=600)
        return [{"what": "served", "form": what, "round": i, "rank": r, **row} for r, row in found.items()]

    rows = sweep.run(_points(forms, rounds), measure)
    more = [*ours.notes, *left_out, *filter(None, [sweep.note()])]
    return _report(rows, ranks.label, provenance(**settings, resumed=sweep.resumed), more, budget)


def _serve(code: Any, form: str, place: Path, requests: int) -> dict[str, Any]:
    """On a rank: serve in one way; a cold one leaves what others start from."""
    way, filled_from = FORMS[form]
    if form == SKEW and dist.get_rank():
        filled_from = "machine"
    way = getattr(code, way) if isinstance(way, str) else way
    found: dict[str, Any] = code.serve(way, place, filled_from, requests)
    if form == COLD:
        code.leave(place)
    return found


def _size(place: Path, form: str) -> int:
    return (place / AHEAD[form]).stat().st_size


def _check(ranks: Ranks) -> None:
    on_cpu(ranks)  # where Inductor builds C++
    if not isinstance(ranks, Ranks):
        raise ValueError("this starts fresh processes for every way, which it cannot do under torchrun")
    if not torch_compat.has_cpp_compiler():
        raise ValueError("Inductor needs a C++ compiler (g++ or clang++) on the CPU, and finds none here")


def _points(forms: Sequence[str], rounds: int) -> dict[str, tuple[str, int]]:
    """The points in their order: what others start from comes first, and rounds are interleaved."""
    points = {MACHINE: (MACHINE, 0)}
    for i in range(rounds):
        for form in [form for form in FORMS if form in {*forms, *(NEEDS.get(f) for f in forms)}]:
            if NEEDS.get(form) == BUILD:
                points.setdefault(BUILD, (BUILD, 0))
            points[f"{form}, round {i}"] = (form, i)
    return points


def machine(place: Path, program: Program) -> dict[str, Any]:
    """Put the libraries that try out this machine's vector instructions into a folder's `machine`.

    They are built once for each torch and hardware, in the reader's labkit folder.

    Args:
        place: the folder.
        program: what has `check_cpu`.

    Returns:
        How many were built, in how many `seconds`, and the `date` of that.
    """
    facts = hardware.describe()
    decides = [facts["torch"], facts["hardware"], *([program.digest] if program.edited else [])]
    name = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
    kept = files.home() / "machine" / name
    said = kept / "took.json"
    try:
        took = json.loads(said.read_text(encoding="utf-8"))
        shutil.copytree(kept / "machine", place / "machine", dirs_exist_ok=True)
    except (OSError, ValueError):
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        with Ranks(1, "cpu", "gloo", quiet=True) as own:
            took = own.run(program.code.check_cpu, kept, timeout=600)[0]
        took["date"] = provenance()["date"]
        files.replace(said, json.dumps(took).encode())
        shutil.copytree(kept / "machine", place / "machine", dirs_exist_ok=True)
    return took


# --- in the kernel: from rows to a report ---


def _report(
    rows: list[dict[str, Any]], label: str, settings: dict[str, Any], more: list[str], budget: float | None
) -> Report:
    served = [row for row in rows if row["what"] == "served"]
    keys = ["form", "round", "rank"]
    columns = [*keys, "ready_s", "check_s", "builds", "hit", "miss", "error"]
    samples = pd.DataFrame(served)[columns].rename(columns={"hit": "hits", "miss": "misses"})
    spans = pd.DataFrame(
        [[*(row[k] for k in keys), *span] for row in served for span in row["spans"]],
        columns=[*keys, "phase", "from_s", "to_s"],
    )
    latency = pd.DataFrame(
        [[*(row[k] for k in keys), i, s] for row in served for i, s in enumerate(row["latency"], 1)],
        columns=[*keys, "request", "seconds"],
    )
    once = next(row for row in rows if row["what"] == MACHINE)
    tables = {
        "ready": ready(samples, latency, budget),
        "latency": latency,
        "spans": spans,
        "phases": phases(spans),
        "samples": samples,
        "ahead": pd.DataFrame(
            [row for row in rows if row["what"] == BUILD], columns=["form", "rank", "seconds", "bytes"]
        ),
        "machine": pd.DataFrame([{k: once[k] for k in ("seconds", "builds", "date")}]),
    }
    worst = float(samples["error"].max())
    few = int(samples.groupby("form")["round"].nunique().min())
    notes = [
        f"outputs {'agree' if worst <= TOLERANCE else 'DO NOT AGREE'} with eager: largest difference {worst:.1e}",
        f"once on this machine, {once['date'][:10]}: {once['builds']} C++ builds, {once['seconds']:.1f} s, in no row",
    ]
    notes += [f"each way was taken {few} time{'s' * (few > 1)}: no verdict"] if few < 8 else []
    notes += more
    return Report("cold", ABOUT.title, label, tables, _verdicts(samples), settings, notes, VIEW)


def ready(samples: pd.DataFrame, latency: pd.DataFrame, budget: float | None = None) -> pd.DataFrame:
    """Make one row a way: seconds until its slowest rank was ready, and latencies with and without the first request.

    Args:
        samples: a row for each form, round and rank.
        latency: a row for each of these and each request, in seconds.
        budget: in seconds; with it, `fits` says whether the slowest rank of the slowest round was ready within it.

    Returns:
        Medians over rounds. Latencies are those of the slowest rank for each request, in milliseconds; `p99_ms` is over
        all requests, `warm_p99_ms` leaves the first one out, as behind a warmup.
    """
    worst = samples.groupby(["form", "round"], sort=False)[["ready_s", "builds", "hits", "misses"]].max()
    each = latency.groupby(["form", "round", "request"], sort=False)["seconds"].max().reset_index()
    found = []
    for form, mine in worst.groupby("form", sort=False):
        taken = each[each["form"] == form]
        later = taken.loc[taken["request"] > 1, "seconds"] * 1e3
        row = {
            "form": form, "ready_s": mine["ready_s"].median(), "builds": int(mine["builds"].median()),
            "hits": int(mine["hits"].median()), "misses": int(mine["misses"].median()),
            "p50_ms": taken["seconds"].median() * 1e3, "p99_ms": taken["seconds"].quantile(0.99) * 1e3,
            "max_ms": taken["seconds"].max() * 1e3, "warm_p99_ms": later.quantile(0.99),
            "warm_max_ms": later.max(), "n": len(mine),
        }  # fmt: skip
        if budget is not None:
            row["fits"] = bool(mine["ready_s"].max() <= budget)
        found.append(row)
    return pd.DataFrame(found)


def phases(spans: pd.DataFrame) -> pd.DataFrame:
    """Sum up the seconds of each way, round and rank by phase: form, round, rank, and a column for each phase."""
    lengths = spans.assign(seconds=spans["to_s"] - spans["from_s"])
    keys = ["form", "round", "rank"]
    table = lengths.pivot_table("seconds", keys, "phase", "sum", fill_value=0.0, sort=False)
    return table.reindex(columns=list(PHASES), fill_value=0.0).reset_index()


def _verdicts(samples: pd.DataFrame) -> list[Verdict]:
    """Each way against the cold one, where there are rounds to compare."""
    if samples["round"].nunique() < 2:
        return []
    taken = by_slowest(samples.rename(columns={"ready_s": "seconds"}), "form")
    return [compare(one, taken[COLD]) for form, one in taken.items() if form != COLD and COLD in taken]
