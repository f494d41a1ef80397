"""Checks of the claim ledger: a probe measures once, and judges read what it measured.

A probe runs something small and returns plain data; a judge is a pure function of that data. So a test can hand a judge
a record in which the claim is false and see that it says so: a check that cannot fail is not a check.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit import hardware
from labkit.per_rank import PerRank
from labkit.ranks import Ranks
from labkit.ranks.output import quiet_stderr

__all__ = [
    "CHECKS",
    "CITED",
    "ENFORCED",
    "HOLDS",
    "READ",
    "SIMULATED",
    "Bench",
    "Check",
    "Probe",
    "Result",
    "cannot_tell",
    "judging",
    "probe",
    "quietly",
    "thread_names",
    "verdict",
]

HOLDS, CHANGED, CANNOT_TELL = "holds", "changed", "cannot tell"
READ, SIMULATED, ENFORCED, CITED = "read in the source", "simulated", "enforced", "cited"
# the words for the yes of a check, and why its no tells nothing about the claim; "" where a no refutes it
NO = {
    HOLDS: "",
    READ: "",
    SIMULATED: "the model does not show it, which says nothing about the hardware",
    ENFORCED: "labkit's own code does not do so here, which says nothing about the claim",
    CITED: "the copy in data/reference differs from the claim",
}
Seen = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """The answer of a judge.

    Args:
        status: HOLDS, CHANGED or CANNOT_TELL, or the word of the check.
        measured: the measured figure in words.
        missing: what it would take, where nothing could be told.
    """

    status: str
    measured: str
    missing: str = ""


def verdict(holds: bool, measured: str) -> Result:
    """State that a claim holds, or that it has changed since.

    Args:
        holds: whether it holds.
        measured: what was seen, either way.

    >>> verdict(2 + 2 == 5, "2 + 2 is 4")
    Result(status='changed', measured='2 + 2 is 4', missing='')
    """
    return Result(HOLDS if holds else CHANGED, measured)


def cannot_tell(missing: str, measured: str = "") -> Result:
    """State that nothing can be told here.

    Args:
        missing: what it would take.
        measured: what was seen all the same.
    """
    return Result(CANNOT_TELL, measured, missing)


# what a launch script may have set, and what would change what a GPU does side by side
NEUTRAL = {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_NCCL_BLOCKING_WAIT": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}


class Bench:
    """The ranks that probes share: started on first use, and ended together.

    >>> with Bench() as bench:
    ...     bench.ranks(2, "gloo") is bench.ranks(2, "gloo")
    True
    """

    def __init__(self) -> None:
        self._ranks: dict[tuple, Ranks] = {}

    def ranks(
        self, world_size: int = 2, backend: str = "gloo", device: str = "cpu", **settings: Any
    ) -> Ranks:
        """Start ranks of this size, backend and device, or return those that run already.

        Raises:
            ValueError: as for `Ranks`.
        """
        key = (world_size, backend, device, repr(sorted(settings.items())))
        if key not in self._ranks:
            self._ranks[key] = Ranks(
                world_size, device, backend, **{"timeout": 120, "quiet": True, **settings}
            )
        return self._ranks[key]

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        ranks: int = 2,
        backend: str = "gloo",
        device: str = "cpu",
    ) -> PerRank:
        """Call a function on shared ranks, and drop what torch writes to stderr meanwhile.

        Args:
            function, arguments: the call.
            ranks: how many.
            backend, device: of the ranks.

        Returns:
            The value of each rank.

        Raises:
            RankError: the function failed on a rank.
        """
        settings = {"env": NEUTRAL} if device == "cuda" else {}
        return self.ranks(ranks, backend, device, **settings).run(quietly, function, *arguments)

    def on_gpus(self, function: Callable[..., Any], *arguments: Any, ranks: int = 0) -> PerRank:
        """Call a function on one rank for each GPU over NCCL, on two where there are two.

        Args:
            function: what is called on each rank.
            arguments: what it is called with.
            ranks: so many ranks, whether they share a GPU or not; 0 for one for each GPU.

        Returns:
            The value of each rank.

        Raises:
            ValueError: there is no GPU.
            RankError: the function failed on a rank.
        """
        return self.run(
            function,
            *arguments,
            ranks=ranks or min(2, len(hardware.gpus())) or 1,
            backend="nccl",
            device="cuda",
        )

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc: object) -> None:
        for ranks in self._ranks.values():
            ranks.close()
        self._ranks.clear()


def quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with stderr closed, C++ logs included: a probe provokes warnings and timeouts on purpose."""
    with quiet_stderr(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


@dataclass(frozen=True)
class Probe:
    """A measurement.

    Args:
        name: such as 'cliff.forwards'.
        run: a function of a Bench that returns a plain dict (what JSON can hold).
    """

    name: str
    run: Callable[[Bench], Seen]


@dataclass(frozen=True)
class Check:
    """A judge together with the probe whose record it reads.

    Args:
        name: as it stands in the ledger.
        probe: the probe.
        judge: reads the record, to which `claimed`, the figure of the row, is added.
        says: what it looks for, in a sentence.
        word: what a yes of the judge is called: HOLDS where PyTorch was run, ENFORCED where labkit's own code was,
            CITED where a copied figure was compared, READ where torch's own files were only read, SIMULATED where a
            model of the hardware ran.
    """

    name: str
    probe: Probe
    judge: Callable[[Seen], Result]
    says: str
    word: str = HOLDS

    def result(self, seen: Seen) -> Result:
        """Judge a record.

        A claim can only be refuted where PyTorch was run or read: a no of any other check is "cannot tell".

        Args:
            seen: the record of the probe.

        Returns:
            The result, with the word of this check for a yes.

        >>> see = Probe("a.see", lambda bench: {})
        >>> check = Check("a.b", see, lambda seen: verdict(seen["ok"], "so"), "It is so.", ENFORCED)
        >>> [check.result({"ok": ok}).status for ok in (True, False)]
        ['enforced', 'cannot tell']
        """
        found = self.judge(seen)
        if found.status == HOLDS:
            return replace(found, status=self.word)
        if found.status == CHANGED and NO[self.word]:
            return cannot_tell(NO[self.word], found.measured)
        return found


CHECKS: dict[str, Check] = {}


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__.strip('_')}"


def probe(function: Callable[[Bench], Seen]) -> Probe:
    """Make a probe of a function, named after its module and itself."""
    return Probe(_name(function), function)


def judging(
    what: Probe, name: str = "", word: str = HOLDS
) -> Callable[[Callable[[Seen], Result]], Callable[[Seen], Result]]:
    """Register a function as the judge of a check.

    Args:
        what: the probe whose record it reads.
        name: of the check; by default its module and name.
        word: what its yes is called; see `Check`.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        ValueError: the name is taken, or the word is unknown.
    """
    if word not in NO:
        raise ValueError(f"a check cannot say {word!r}: its word is one of {', '.join(NO)}")

    def register(judge: Callable[[Seen], Result]) -> Callable[[Seen], Result]:
        full = name or _name(judge)
        if full in CHECKS:
            raise ValueError(f"there are two checks named {full!r}")
        CHECKS[full] = Check(full, what, judge, " ".join((judge.__doc__ or "").split()), word)
        return judge

    return register


def thread_names() -> list[str]:
    """List the names of the threads of this process, each once and sorted.

    Raises:
        OSError: there is no /proc, so that a probe tells nothing there.

    >>> Path("/proc/self/task").is_dir() and len(thread_names()) > 0 or "no /proc here"
    True
    """
    names = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # one that has just ended
            names.add((task / "comm").read_text().strip())
    return sorted(names)
