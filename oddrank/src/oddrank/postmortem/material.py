"""What was read of a job: files, rows of evidence, and flight records."""

from __future__ import annotations

from dataclasses import dataclass, field

from oddrank.postmortem.calls import Dump
from oddrank.postmortem.rows import File, Row

__all__ = ["Material"]


@dataclass(slots=True)
class Material:
    """What was read: `rows` of evidence and `dumps`, and of each file what it was taken for.

    `stale` has the records that are or may be of an earlier moment: they are compared with none. `why` has, by rank,
    the later stack or error that shows it: a sentence, and the place of the evidence.
    """

    files: list[File] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    dumps: dict[int, Dump] = field(default_factory=dict)
    stale: dict[int, Dump] = field(default_factory=dict)
    why: dict[int, tuple[str, str]] = field(default_factory=dict)
    last: dict[int, tuple[str, str]] = field(default_factory=dict)  # by rank: where its log ends, and when

    def of(self, rank: int, *kinds: str) -> list[Row]:
        """The rows of a rank, of these kinds, in the order of their files."""
        return [row for row in self.rows if row.rank == rank and row.kind in kinds]

    def written(self, name: str) -> float:
        """When a file was written; 0 where that is not known."""
        return next((file.written for file in self.files if file.name == name), 0.0)

    def ranks(self) -> list[int]:
        """Every rank that a file or a group names."""
        dumps = self.dumps | self.stale
        named = {row.rank for row in self.rows if row.rank is not None} | set(dumps) | set(self.last)
        named |= {rank for dump in dumps.values() for members in dump.members.values() for rank in members}
        named |= {file.rank for file in self.files if file.rank is not None and file.kind}
        return sorted(named)
