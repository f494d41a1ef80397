"""Past this machine: the block traced for 2 to 1,024 ranks, and a cost model held against the ranks that are here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from course.scale import on_ranks as scale_ranks
from course.scale import tables as scale_tables
from course.scale import worlds as tracing
from course.scale.declared import SCALE as ABOUT
from course.scale.worlds import WORLDS, parse_worlds
from course.shared.costs import ALGORITHMS, Compute, Link
from course.shared.model_size import check_split
from course.shared.options import chosen
from course.shared.program import choose as choose_program
from course.shared.sweep import parse_sizes
from labkit import hardware
from labkit.ranks import Ranks
from labkit.report import Report, provenance
from labkit.timing import check_rounds

NEEDED = ("cliff", "trace", "flops")  # what is taken of the program; `cliff` has the block
SIZES = (128, 4096, 32 * 1024, 128 * 1024, 512 * 1024)  # bytes of an all_reduce in the sweep
CHECKED = (2, 4)  # worlds in which the model is held against a measurement
SHARDS = (2, 4, 16, 1024)  # worlds whose shard's work is timed alone
TIMEOUT_S = 300.0
LARGEST_BLOCK = 1 << 30  # bytes of weights of a block that is really run


def run(
    ranks: Ranks,
    worlds: str | Sequence[int] = WORLDS,
    *,
    dim: int = 1024,
    heads: int = 1024,
    tokens: int = 32,
    alpha: float | None = None,
    bandwidth: float | None = None,
    overhead: float | None = None,
    rate: float | None = None,
    algorithm: str = "ring",
    trace: bool = False,
    rounds: int = 12,
    also: Sequence[str] | None = None,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Trace one block for every world size, fit the model's constants here, and hold it against two and four ranks.

    worlds: sizes, as numbers or as '2,4,1024'; each divides `heads`. alpha (us a step) and bandwidth (GB/s), overhead
    (us a forward) and rate (Gflop/s) are constants of the reader's, given in pairs; what is not given is measured.
    algorithm: of the model's all_reduce. trace: measure nothing, which needs all four. rounds: of every timing. also:
    further backends; None is gloo or shm, whichever these CPU ranks are not on. program: the cells of lesson 16, as a
    module or a mapping such as a notebook's `globals()`; None is the lesson's own.

    Tables: `summary`; `worlds`, `collectives` and `graphs`, which are simulated and have no times; `tracer`, what
    tracing itself took; `model` (world_size, link, compute_ms, communication_ms, step_ms, share); `constants`; `sweep`,
    `steps`, `work` and `sent`, which are measured; `check`, the model beside the measurement; `assumptions`.

    The traces are made in a process of their own: no group, and nothing that Dynamo knows, is left in this one. Raises
    ValueError, before any rank hears of it, for a world that does not divide the heads and a constant that is none.

    >>> stated = dict(alpha=10.0, bandwidth=25.0, overhead=20.0, rate=100e3, trace=True)
    >>> with Ranks(2, device="cpu", quiet=True) as ranks:
    ...     report = run(ranks, [2, 1024], **stated)
    >>> report.tables["worlds"].set_index("world_size")["sent_bytes"].to_dict()
    {2: 262400.0, 1024: 524287.5}
    >>> report.label
    'simulated, model'
    """
    check_rounds(rounds)
    ours = choose_program("scale", program, NEEDED)
    code = ours.code
    config = code.cliff.Config(dim=dim, heads=heads, blocks=1, tokens=tokens)
    sizes = parse_worlds(worlds, config)
    link, compute = _stated(alpha, bandwidth, overhead, rate)
    chosen([algorithm], ALGORITHMS, "algorithm")
    if trace and (link is None or compute is None):
        raise ValueError(
            "without measuring the model needs its constants: alpha, bandwidth, overhead and rate"
        )
    if not trace:
        _measurable(config, ranks)

    load = os.getloadavg()[0]  # before this adds to it: what else the machine is busy with
    found: dict[str, Any] = {"traces": _traced(code, config, sizes)}
    _say(talk, f"traced: {', '.join(map(str, sizes))} ranks")
    found["links"], found["work"], notes = {}, {}, list(ours.notes)
    if not trace:
        shards = [n for n in SHARDS if not heads % n]
        # as many ranks as can work at once, because peers that work share caches and memory with each other
        busy = min(ranks.world_size, _units(ranks.device))
        with Ranks(busy, ranks.device, "fake", threads=ranks.threads, quiet=True) as others:
            each = others.run(scale_ranks.work_alone, code.cliff, config, shards, rounds, timeout=TIMEOUT_S)
        found["work"] = {n: [s for one in each for s in one[n]] for n in shards}
        _say(talk, f"the work without the talk: shards of {', '.join(map(str, shards))} ranks")
        for backend in (ranks.backend, *(_others(ranks) if also is None else also)):
            for world in sorted({*CHECKED, ranks.world_size}):
                said = _on_a_link(found["links"], code.cliff, config, ranks, backend, world, rounds)
                notes += [said] if said else []
                _say(talk, said or f"{backend}: {world} ranks")
    units = _units(ranks.device)
    if not trace and load > hardware.cores() / 2:
        notes.append(
            f"measured on a busy machine: load average {load:.1f} on {hardware.cores()} cores before it began"
        )
    settings = {
        "backend": ranks.backend, "device": ranks.device, "threads": ranks.threads, "rounds": rounds,
        "algorithm": algorithm, "units": units, "load_before": round(load, 1),
        "block": {"dim": dim, "heads": heads, "tokens": tokens}, "program": ours.digest,
    }  # fmt: skip
    first = "stated" if link else f"{ranks.label}, {ranks.world_size} ranks"
    unit = "core" if ranks.device == "cpu" else "GPU"
    tables, more = scale_tables.tables(found, link, compute, algorithm, units, unit)
    label = ", ".join(["simulated", "model", *dict.fromkeys(tables["steps"]["link"])])
    made, view = provenance(**settings, model=first), "course.scale.figures:figure"
    return Report("scale", ABOUT.title, label, tables, [], made, [*notes, *more], view)


def _stated(
    alpha: float | None, bandwidth: float | None, overhead: float | None, rate: float | None
) -> tuple[Link | None, Compute | None]:
    """The reader's constants, in SI units. Raises ValueError for half a pair and for what is no constant."""
    for one, other in (
        ({"alpha": alpha}, {"bandwidth": bandwidth}),
        ({"overhead": overhead}, {"rate": rate}),
    ):
        given = [name for name, value in {**one, **other}.items() if value is not None]
        if len(given) == 1:
            missing = next(name for name in (*one, *other) if name not in given)
            raise ValueError(f"{given[0]} was given without {missing}: they belong together")
    link = compute = None
    if alpha is not None and bandwidth is not None:
        _number("alpha", alpha, "us a step", 0)
        _number("bandwidth", bandwidth, "GB/s", None)
        link = Link(alpha * 1e-6, 1e-9 / bandwidth)
    if overhead is not None and rate is not None:
        _number("overhead", overhead, "us", 0)
        _number("rate", rate, "Gflop/s", None)
        compute = Compute(overhead * 1e-6, rate * 1e9)
    return link, compute


def _number(name: str, value: Any, unit: str, least: float | None) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
    if not good or (value <= 0 if least is None else value < least):
        rule = "above 0" if least is None else f"of {least:g} or more"
        raise ValueError(f"{name} must be a finite number {rule} ({unit}), got {value!r}")


def _measurable(config: Any, ranks: Ranks) -> None:
    """Raise ValueError for a block, or ranks, that nothing can be measured with here."""
    nbytes = 4 * config.dim * config.dim * (4 + 2 * config.mlp_ratio)
    if nbytes > LARGEST_BLOCK:
        raise ValueError(
            f"a block of dim={config.dim} has {nbytes / 2**30:.1f} GiB of weights, too much to run here: measure a "
            "smaller one, or give all four constants and trace=True"
        )
    if ranks.world_size < 2:
        raise ValueError("a link needs two ranks: make Ranks(2), or give all four constants and trace=True")
    check_split(config, ranks.world_size)


def _traced(code: Any, config: Any, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """All traces, made by one process that is ended afterwards."""
    with Ranks(1, "cpu", "fake", quiet=True) as alone:
        return alone.run(tracing.trace_all, code, config, sizes, timeout=TIMEOUT_S)[0]


def _on_a_link(
    links: dict[tuple[str, int], Any],
    cliff: Any,
    config: Any,
    ranks: Ranks,
    backend: str,
    world: int,
    rounds: int,
) -> str:
    """Measure on `world` ranks over a backend, on the given ones where they are that; returns why it cannot, or ''."""
    call = (scale_ranks.on_a_link, cliff, config, parse_sizes(SIZES), rounds)
    if config.heads % world:
        return f"not measured on {world} ranks: heads={config.heads} do not split evenly over them"
    if (backend, world) == (ranks.backend, ranks.world_size):
        links[ranks.label, world] = ranks.run(*call, timeout=TIMEOUT_S)
        return ""
    device = "cpu" if backend == "shm" else ranks.device
    try:
        others = Ranks(world, device, backend, threads=ranks.threads, quiet=True)
    except ValueError as error:
        return f"not measured on {world} ranks over {backend}: {error}"
    with others:
        if (others.label, world) not in links:
            links[others.label, world] = others.run(*call, timeout=TIMEOUT_S)
    return ""


def _others(ranks: Ranks) -> tuple[str, ...]:
    if ranks.device != "cpu":
        return ()
    return tuple(name for name in ("shm", "gloo") if name != ranks.backend)


def _units(device: str) -> int:
    """How many ranks can work at once: cores, or GPUs."""
    return (len(hardware.gpus()) if device != "cpu" else hardware.cores()) or os.cpu_count() or 1


def _say(talk: bool, what: str) -> None:
    if talk:
        print(what, flush=True)
