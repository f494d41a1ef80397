"""The eager trap: what functional collectives cost where nothing compiles them, in a model and over sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from course.shared.model_size import check_split
from course.shared.program import Program
from course.shared.program import choose as choose_program
from course.shared.sweep import parse_sizes
from course.trap import on_ranks as trap_ranks
from course.trap import tables as trap_tables
from course.trap.calls import COLLECTIVES, FUNCTIONAL, IN_PLACE
from course.trap.declared import EAGER_TRAP as ABOUT
from course.trap.tables import size
from labkit.ranks import Ranks
from labkit.report import PerRank, Report, provenance
from labkit.timing import check_rounds

if TYPE_CHECKING:
    import pandas as pd

SIZES = (4, 1024, 16 * 1024, 256 * 1024, 4 << 20, 64 << 20)
GATED = "gated"
WAITED, INFERENCE = "functional, waited for", "functional, inference mode"
NEEDED = ("Config", "full", "shard", "inplace", "functional", "gated")  # what is taken of lesson 04's program
LAYERS = ("RUNGS", "waited", "inference")  # and of lesson 05's
TOLERANCE = 1e-4  # float32, forty blocks, sums in another order than the unsharded model


def run(
    ranks: Ranks,
    blocks: int = 40,
    *,
    collectives: Sequence[str] = COLLECTIVES,
    sizes: str | Sequence[int] = SIZES,
    rounds: int = 12,
    reduces: Mapping[str, Callable[..., Any]] | None = None,
    also: Sequence[str] | None = None,
    program: Any = None,
    host_only: bool = True,
    patience: float = 4.0,
    timeout: float | None = 600.0,
    talk: bool = False,
) -> Report:
    """Time eager collectives in place and functional: in a model, and one call at a time over sizes.

    Args:
        ranks: started ranks.
        blocks: of the model, four all-reduces each.
        collectives: which single calls.
        sizes: bytes of a call's larger tensor (what is reduced, or gathered and scattered, whole), as numbers or as
            '4,16K,64M'.
        rounds: timing rounds, interleaved; sizes above 1 MB take eight.
        reduces: {'in place' | 'functional' | 'gated': all-reduce}, to try your own in the model.
        program: the model and its all-reduces, as a module or a mapping such as a notebook's `globals()`; None is that
            of lesson 04. If it has `RUNGS`, they take the place of the ladder in lesson 05.
        also: further backends; None is gloo or shm, whichever these CPU ranks are not on.
        host_only: measure without communication too.
        patience: seconds that the rounds of one size may take; above, it is left out.
        timeout: of one call on the ranks, in seconds.
        talk: print what is being measured.

    Returns:
        A report. Times are in seconds unless a column says otherwise, a round's time is that of its slowest rank, and
        verdicts are held against the noise floor of the same rounds. `ladder` says what each layer of a functional
        all-reduce adds in the model.

    Raises:
        ValueError: a size, a collective, a number of rounds or a form does not exist; before anything runs.
        RankError: a rank fails.

    >>> from course.trap import experiment as eager_trap
    >>> with Ranks(2, device="cpu", backend="shm", quiet=True) as ranks:
    ...     report = eager_trap.run(ranks, 1, collectives=["all_reduce"], sizes="4", rounds=2, also=(), host_only=False)
    >>> work = report.tables["work"]
    >>> work[work["rank"] == 0].set_index("form")["functional"].gt(0).to_dict()
    {'in place': False, 'functional': True}
    """
    check_rounds(rounds)
    chosen, nbytes = _collectives(collectives), parse_sizes(sizes)
    ours = choose_program("cliff", program, NEEDED)
    layers = _layers(program)
    config = ours.code.Config(dim=64, heads=2 * math.ceil(ranks.world_size / 2), blocks=blocks, tokens=4)
    check_split(config, ranks.world_size)
    if not patience > 0:
        raise ValueError(f"patience is a number of seconds above 0, got {patience!r}")
    forms: dict[str, Callable[..., Any]] = {
        IN_PLACE: ours.code.inplace,
        FUNCTIONAL: ours.code.functional,
        GATED: ours.code.gated,
    }
    unknown = set(reduces or {}) - set(forms)
    if unknown:
        raise ValueError(f"reduces names form {min(unknown)!r}: there is {', '.join(forms)}")
    forms |= {WAITED: layers.code.waited, INFERENCE: layers.code.inference} | dict(reduces or {})
    rungs = {rung.__doc__ or rung.__name__: rung for rung in layers.code.RUNGS}
    arguments = (ours.code, config, chosen, nbytes, rounds, forms, rungs, patience)
    runs = {ranks.label: ranks.run(trap_ranks.measure, *arguments, True, talk, timeout=timeout)}
    more = _others(ranks) if also is None else tuple(also)
    for backend in [*more, *(["fake"] if host_only and ranks.backend != "fake" else [])]:
        device = "cpu" if backend in ("fake", "shm") else ranks.device
        with Ranks(ranks.world_size, device, backend, threads=ranks.threads, quiet=True) as others:
            if others.label not in runs:
                runs[others.label] = others.run(trap_ranks.measure, *arguments, False, talk, timeout=timeout)
    settings = {
        "backend": ranks.backend,
        "device": ranks.device,
        "world_size": ranks.world_size,
        "threads": ranks.threads,
        "rounds": rounds,
        "patience_s": patience,
        "program": ours.digest,
        "layers": layers.digest,
        "model": {"blocks": blocks, "dim": config.dim, "heads": config.heads, "tokens": config.tokens},
    }
    made = trap_tables.tables(runs, list(rungs), config.collectives)
    return _report(made, runs, ranks.label, provenance(**settings), [*ours.notes, *layers.notes])


def _layers(program: Any) -> Program:
    """The ladder: that of the given program if it has rungs, else that of lesson 05."""
    space = program if isinstance(program, Mapping) else getattr(program, "__dict__", {})
    if "RUNGS" not in space:
        return choose_program("trap", None, ())
    return choose_program("trap", program, [*LAYERS, *(rung.__name__ for rung in space["RUNGS"])])


def _collectives(names: Sequence[str]) -> tuple[str, ...]:
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        if name not in COLLECTIVES:
            raise ValueError(f"unknown collective {name!r}: there is {', '.join(COLLECTIVES)}")
    if not chosen:
        raise ValueError(f"no collective was chosen: give at least one of {', '.join(COLLECTIVES)}")
    return chosen


def _others(ranks: Ranks) -> tuple[str, ...]:
    if ranks.device != "cpu" or not 2 <= ranks.world_size <= 8:
        return ()
    return tuple(name for name in ("shm", "gloo") if name != ranks.backend)


def _report(
    made: dict[str, pd.DataFrame],
    runs: dict[str, PerRank[dict[str, Any]]],
    label: str,
    settings: dict[str, Any],
    notes: list[str],
) -> Report:
    verdicts = trap_tables.model_verdicts(runs)
    return Report(
        *("eager_trap", ABOUT.title, label, made, verdicts, settings, [*notes, *_notes(made, runs)]),
        "course.trap.figures:figure",
    )


def _notes(made: dict[str, pd.DataFrame], runs: dict[str, PerRank[dict[str, Any]]]) -> list[str]:
    work = made["model_work"]
    notes = []
    for form in (FUNCTIONAL, GATED):
        counts = sorted(set(work.loc[work["form"] == form, "functional"]))
        said = " or ".join(map(str, counts))
        notes.append(f"eager, {form}: {said} functional operations in a forward")
    control = made["verdicts"][made["verdicts"]["stage"] == "control"]
    clean = int((control["outcome"] == "cannot tell").sum())
    notes.append(
        f"A against A: {clean} of {len(control)} controls say 'cannot tell'; floors are as they fell"
    )
    for evidence, found in runs.items():
        notes += [
            f"left out on {evidence}: {collective} of {size(nbytes)}, {seconds:.0f} s"
            for collective, nbytes, seconds in found[0]["left_out"]
        ]
    errors = [e for found in runs.values() for one in found for e in one["model"]["error"].values()]
    known = [e for e in errors if e is not None]
    if known:
        agree = "agree" if max(known) <= TOLERANCE else "DO NOT AGREE"
        notes.append(f"outputs {agree} with the unsharded model: largest difference {max(known):.1e}")
    return notes
