"""Cold and warm: how long each way to compiled code takes a fresh process, by phase, and what first requests see."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import files, hardware, torch_compat
from labkit.experiments.options import on_cpu
from labkit.lessons.cold import on_ranks as cold_ranks
from labkit.lessons.cold import program as cold_program
from labkit.lessons.cold.declared import COLD as ABOUT
from labkit.lessons.cold.on_ranks import (
    AOT,
    AOTI,
    ARTIFACTS,
    BLOCKS,
    BUILD,
    COLD,
    DISK,
    EAGER,
    FORMS,
    MACHINE,
    NESTED,
    PHASES,
    RUN,
    SHIPPED,
    SKEW,
)
from labkit.lessons.shared.options import chosen
from labkit.lessons.shared.sweep import Sweep
from labkit.ranks import Ranks
from labkit.report import Report, provenance
from labkit.timing import Verdict, compare, slowest

VIEW = "labkit.lessons.cold.figures:figure"
USUAL = tuple(form for form in FORMS if form != NESTED)
NEEDS = {DISK: COLD, ARTIFACTS: COLD, SKEW: COLD, AOT: BUILD, AOTI: BUILD}
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
    talk: bool = False,
) -> Report:
    """Start fresh ranks for each way to compiled code, and time them until they have answered their first requests.

    form: which ways, all but nested regions by default; what they start from is made as well. requests: how many are
    timed, the first included. budget: seconds that a rank may take until it is ready; the table `ready` then says which
    ways fit. rounds: how often each way is taken; below eight no verdict is possible. full: every way, eight rounds.

    Every rank of every way is a process that has imported torch and compiled nothing, with cache folders of its own, as
    if it were a machine of its own; the reader's caches are not touched. What is done once on a machine (C++ programs
    that try out its vector instructions) is timed by itself, once, and kept in the reader's labkit folder.

    Times are seconds. Raises ValueError before any rank is started for a form that does not exist or a number out of
    range, and where there is no C++ compiler; RankError when a rank fails.

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
    left_out = []
    if ranks.backend == "gloo" and AOTI in forms:
        if AOTI in form:
            raise ValueError(f"{AOTI} cannot be served on gloo: {GLOO}; take ranks on shm")
        forms, left_out = [f for f in forms if f != AOTI], [f"left out: {GLOO}"]
    settings = {
        "backend": ranks.backend, "device": "cpu", "world_size": ranks.world_size, "threads": ranks.threads,
        "requests": requests, "rounds": rounds, "code": cold_program.SOURCE,
    }  # fmt: skip
    sweep = Sweep("cold", settings, folder, fresh, talk)
    made = sweep.place / "made"

    def measure(point: tuple[str, int]) -> list[dict[str, Any]]:
        what, i = point
        if what == MACHINE:
            made.mkdir(parents=True, exist_ok=True)
            cold_program.write(made / "program")
            if forms == [EAGER]:  # nothing will be built
                (made / "machine").mkdir(exist_ok=True)
                return [{"what": MACHINE, "seconds": 0.0, "builds": 0, "date": provenance()["date"]}]
            return [{"what": MACHINE, **machine(made / "machine")}]
        with Ranks(ranks.world_size, "cpu", ranks.backend, threads=ranks.threads, quiet=True) as own:
            if what == BUILD:
                rows = own.run(cold_ranks.build, str(made), timeout=600)
                return [{"what": BUILD, "rank": r, **row} for r, mine in rows.items() for row in mine]
            found = own.run(cold_ranks.serve, what, str(made), requests, timeout=600)
        return [{"what": "served", "form": what, "round": i, "rank": r, **row} for r, row in found.items()]

    rows = sweep.run(_points(forms, rounds), measure)
    settings.pop("code")
    more = [*left_out, *filter(None, [sweep.note()])]
    return _report(rows, ranks.label, provenance(**settings, resumed=sweep.resumed), more, budget)


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


def machine(folder: Path) -> dict[str, Any]:
    """The cache folder of this machine with its vector instructions tried out, copied to `folder`, and what that took.

    It is done once for each torch and hardware, in the reader's labkit folder; `seconds` and `date` are of that time.
    """
    facts = hardware.describe()
    name = hashlib.sha256(json.dumps([facts["torch"], facts["hardware"]]).encode()).hexdigest()[:12]
    place = files.home() / "machine" / name
    said = place / "took.json"
    try:
        took = json.loads(said.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        shutil.rmtree(place, ignore_errors=True)
        with Ranks(1, "cpu", "gloo", quiet=True) as own:
            took = own.run(cold_ranks.probe, str(place / "caches"), timeout=600)[0]
        took["date"] = provenance()["date"]
        files.replace(said, json.dumps(took).encode())
    shutil.copytree(place / "caches", folder, dirs_exist_ok=True)
    return took


# --- in the kernel: from rows to a report ---


def _report(
    rows: list[dict[str, Any]], label: str, settings: dict[str, Any], more: list[str], budget: float | None
) -> Report:
    served = [row for row in rows if row["what"] == "served"]
    keys = ["form", "round", "rank"]
    columns = [*keys, "prepared_s", "ready_s", "builds", "hits", "misses", "bytes", "error"]
    samples = pd.DataFrame(served)[columns]
    spans = pd.DataFrame(
        [[*(row[k] for k in keys), *span] for row in served for span in row["segments"]],
        columns=[*keys, "phase", "from_s", "to_s"],
    )
    latency = pd.DataFrame(
        [[*(row[k] for k in keys), i, s] for row in served for i, s in enumerate(row["latency"], 1)],
        columns=[*keys, "request", "seconds"],
    )
    ahead = pd.DataFrame(
        [row for row in rows if row["what"] == BUILD], columns=["form", "rank", "seconds", "bytes"]
    )
    once = next(row for row in rows if row["what"] == MACHINE)
    tables = {
        "ready": ready(samples, latency, budget),
        "latency": latency,
        "spans": spans,
        "phases": phases(spans),
        "samples": samples,
        "ahead": ahead,
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
    """One row a way: seconds until its slowest rank was ready, and latencies with and without the first request.

    Medians over rounds; latencies are those of the slowest rank for each request, in milliseconds. `p99_ms` is over all
    requests, the first included; `warm_p99_ms` leaves the first one out, as behind a warmup. With a `budget` (seconds),
    `fits` says whether the slowest rank of the slowest round was ready within it.
    """
    slow = samples.groupby(["form", "round"], sort=False)
    worst = slow[["ready_s", "prepared_s", "builds", "hits", "misses", "bytes"]].max().reset_index()
    each = latency.groupby(["form", "round", "request"], sort=False)["seconds"].max().reset_index()
    found = []
    for form, mine in worst.groupby("form", sort=False):
        taken = each[each["form"] == form]
        later = taken.loc[taken["request"] > 1, "seconds"] * 1e3
        row = {
            "form": form, "ready_s": mine["ready_s"].median(), "builds": int(mine["builds"].median()),
            "hits": int(mine["hits"].median()), "misses": int(mine["misses"].median()),
            "bytes": int(mine["bytes"].median()), "p50_ms": taken["seconds"].median() * 1e3,
            "p99_ms": taken["seconds"].quantile(0.99) * 1e3, "max_ms": taken["seconds"].max() * 1e3,
            "warm_p99_ms": later.quantile(0.99), "warm_max_ms": later.max(), "n": len(mine),
        }  # fmt: skip
        if budget is not None:
            row["fits"] = bool(mine["ready_s"].max() <= budget)
        found.append(row)
    return pd.DataFrame(found)


def phases(spans: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each way, round and rank by phase: form, round, rank, and a column for each phase."""
    lengths = spans.assign(seconds=spans["to_s"] - spans["from_s"])
    keys = ["form", "round", "rank"]
    table = lengths.pivot_table("seconds", keys, "phase", "sum", fill_value=0.0, sort=False)
    return table.reindex(columns=list(PHASES), fill_value=0.0).reset_index()


def _verdicts(samples: pd.DataFrame) -> list[Verdict]:
    """Each way against the cold one, where there are rounds to compare."""
    taken = {
        str(form): {r: list(s) for r, s in rows.groupby("rank")["ready_s"]}
        for form, rows in samples.groupby("form", sort=False)
        if rows["round"].nunique() > 1
    }
    if COLD not in taken:
        return []
    base = slowest(COLD, taken[COLD])
    return [compare(slowest(form, by_rank), base) for form, by_rank in taken.items() if form != COLD]


def waits(spans: pd.DataFrame, form: str = SKEW) -> pd.DataFrame:
    """How long each rank ran, or waited in a collective, after its own compiling: rank, round, compiled_s, waited_s."""
    mine = spans[spans["form"] == form]
    found = []
    for (i, rank), rows in mine.groupby(["round", "rank"], sort=False):
        own = rows[rows["phase"] != RUN]
        done, end = (own["to_s"].max() if len(own) else 0.0), rows["to_s"].max()
        found.append({"rank": rank, "round": i, "compiled_s": done, "waited_s": end - done})
    return pd.DataFrame(found, columns=["rank", "round", "compiled_s", "waited_s"])


__all__ = [
    "AOT",
    "AOTI",
    "ARTIFACTS",
    "BLOCKS",
    "COLD",
    "DISK",
    "SHIPPED",
    "SKEW",
    "phases",
    "ready",
    "run",
    "waits",
]
