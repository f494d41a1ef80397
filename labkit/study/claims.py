"""The rows of the claim ledger, data/claims.toml: read, and refused where one breaks a rule."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from labkit import files

__all__ = ["KINDS", "LESSONS", "NEEDS", "Claim", "Claims", "load", "parse"]

FILE = files.ours("data/claims.toml")
KINDS = ("semantics", "structure", "timing", "history")
LESSONS = (
    "00_start_here",
    "01_process_groups",
    "02_inplace_vs_functional",
    "03_reading_graphs",
    "04_graph_break_cliff",
    "05_eager_trap",
    "06_streams_and_events",
    "07_streams_in_compile",
    "08_rank_symmetry",
    "09_guards_and_shapes",
    "10_dtensor_or_explicit",
    "11_mesh_or_world",
    "12_cold_and_warm",
    "13_ddp_and_compiled_autograd",
    "14_fsdp_and_passes",
    "15_break_it",
    "16_beyond_this_machine",
    "17_one_compile",
    "19_ledger",
)
# what a row may need: how many GPUs, and how to say so
NEEDS = {"gpu": (1, "a GPU"), "2 gpus": (2, "2 GPUs"), "nvlink": (2, "2 GPUs joined by NVLink")}
FIELDS = {*"id section claim words kind figure lesson check read needs beyond can never".split()}
REQUIRED = ("id", "section", "claim", "kind", "lesson")


@dataclass(frozen=True)
class Claim:
    """One row: what a source says, in our own words, and the check that tests it.

    Args:
        id: such as 't11.trap.eager-slower'.
        source: title of the document.
        date: of the document.
        section: of the document.
        claim: what it says.
        kind: one of KINDS.
        lesson: one of LESSONS.
        words: how the source says it, where its text is at hand.
        figure: the number that is claimed.
        check: name of the check; None while there is none.
        read: name of a check that reads torch's released files, for where what the row needs is not there.
        needs: names in NEEDS.
        can: whether it says that something can happen, which a run without it does not refute.
        never: why it has been true on no torch, where a check says that it is not.
        beyond: what it would take where no run of ours can tell: advice, an opinion, somebody's own system.
    """

    id: str
    source: str
    date: str
    section: str
    claim: str
    kind: str
    lesson: str
    words: str = ""
    figure: str = ""
    check: str | None = None
    read: str = ""
    needs: tuple[str, ...] = ()
    can: bool = False
    never: str = ""
    beyond: str = ""

    @property
    def no(self) -> str:
        """What it is called where the check says no: 'changed', 'never true' or 'not provoked'."""
        return "not provoked" if self.can else "never true" if self.never else "changed"

    @property
    def untested(self) -> bool:
        """Whether a check is still to be written."""
        return self.check is None and not self.beyond


@dataclass(frozen=True)
class Claims:
    """The whole ledger: its sources, its rows in order, and the number of rows that are known to have no check."""

    sources: dict[str, dict[str, str]]
    rows: tuple[Claim, ...]
    untested: int

    def choose(self, lesson: str | None = None, only: Collection[str] = ()) -> tuple[Claim, ...]:
        """Select rows.

        Args:
            lesson: '04' or the whole name; None for all lessons.
            only: ids; 't11.trap.*' matches several. Empty for all.

        Returns:
            The rows.

        Raises:
            ValueError: a lesson or an id matches nothing.

        >>> claims = load()
        >>> [row.id for row in claims.choose(only=["t11.trap.eager-slower"])]
        ['t11.trap.eager-slower']
        """
        rows = self.rows
        if lesson is not None:
            matching = [name for name in LESSONS if name == lesson or name.partition("_")[0] == lesson]
            if not matching:
                raise ValueError(f"there is no lesson {lesson!r}: there are {', '.join(LESSONS)}")
            rows = tuple(row for row in rows if row.lesson == matching[0])
        for pattern in only:
            if not any(fnmatchcase(row.id, pattern) for row in rows):
                where = f" in lesson {lesson!r}" if lesson else ""
                raise ValueError(
                    f"no claim{where} has the id {pattern!r}; `labkit ledger --untested` and --json list ids"
                )
        if only:
            rows = tuple(row for row in rows if any(fnmatchcase(row.id, pattern) for pattern in only))
        return rows


def load(path: str | Path | None = None, checks: Collection[str] | None = None) -> Claims:
    """Read the ledger.

    Args:
        path: by default data/claims.toml of this checkout.
        checks: the names of checks that a row may have; None for any.

    Returns:
        The ledger.

    Raises:
        ValueError: the file is missing, or a row breaks a rule; the message names both.

    >>> len(load().rows) > 400
    True
    """
    file = Path(path) if path is not None else FILE
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        if path is None:
            raise ValueError(
                "the claims are part of the repository: run labkit from a checkout of it"
            ) from error
        raise ValueError(f"cannot read the claims in {file}: {error.strerror or error}") from error
    try:
        return parse(text, checks)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file.name} is not TOML: {error}") from error


def parse(text: str, checks: Collection[str] | None = None) -> Claims:
    """Parse the ledger in a TOML text; see `load`.

    >>> parse("untested = 0")
    Claims(sources={}, rows=(), untested=0)
    """
    body = tomllib.loads(text)
    untested = body.get("untested")
    if not isinstance(untested, int) or isinstance(untested, bool) or untested < 0:
        raise ValueError(f"untested must be the number of rows without a check, got {untested!r}")
    sources = body.get("sources", {})
    for key, source in sources.items():
        if not source.get("title"):
            raise ValueError(f"source {key!r}: it has no title")
    rows: dict[str, Claim] = {}
    for number, entry in enumerate(body.get("claim", []), 1):
        row = _row(entry, number, sources, checks)
        if row.id in rows:
            raise ValueError(f"claim {row.id!r}: this id stands there twice")
        rows[row.id] = row
    return Claims(sources, tuple(rows.values()), untested)


def _row(
    entry: Mapping[str, Any], number: int, sources: Mapping[str, Any], checks: Collection[str] | None
) -> Claim:
    who = f"claim {entry['id']!r}" if entry.get("id") else f"claim number {number}"
    for name in REQUIRED:
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ValueError(f"{who}: it has no {name}")
    unknown = sorted(set(entry) - FIELDS)
    if unknown:
        raise ValueError(f"{who}: there is no field {unknown[0]!r}: there are {', '.join(sorted(FIELDS))}")
    key = entry["id"].partition(".")[0]
    if key not in sources:
        raise ValueError(f"{who}: no source has the key {key!r}: there are {', '.join(sources) or 'none'}")
    if entry["kind"] not in KINDS:
        raise ValueError(f"{who}: unknown kind {entry['kind']!r}: there are {', '.join(KINDS)}")
    if entry["lesson"] not in LESSONS:
        raise ValueError(f"{who}: unknown lesson {entry['lesson']!r}: there are {', '.join(LESSONS)}")
    needs = entry.get("needs", [])
    for need in needs:
        if need not in NEEDS:
            raise ValueError(f"{who}: it cannot need {need!r}: there are {', '.join(map(repr, NEEDS))}")
    check = entry.get("check")
    for name in filter(None, (check, entry.get("read"))):
        if checks is not None and name not in checks:
            raise ValueError(f"{who}: there is no check {name!r} in labkit/lessons/<topic>/claims")
    if entry.get("read") and not needs:
        raise ValueError(f"{who}: it needs nothing, so its check can run and nothing has to be read instead")
    if check is not None and entry.get("beyond"):
        raise ValueError(f"{who}: it has a check, so it cannot be beyond one")
    if not isinstance(entry.get("can", False), bool):
        raise ValueError(f"{who}: can must be true or false, got {entry['can']!r}")
    if entry.get("can") and entry.get("never"):
        raise ValueError(f"{who}: what can happen is not refuted, so it has no reason why it was never true")
    fields = {name: value for name, value in entry.items() if name != "needs"}
    source = sources[key]
    return Claim(source=source["title"], date=source.get("date", "undated"), needs=tuple(needs), **fields)
