"""A symmetry domain: a group of ranks that must be alike, with its own exchange, and checks of the code it runs.

Enforces, of topic 12, "define symmetry domains up front" and "a rank outside the mesh must not enter its collectives":
a contract holds for a process group, not for the world, and the mistakes are a collective asked of the wrong group and
a rank in a group's code that is not its own. Both end in an error here before anybody waits.

To copy it takes exchange.py and, of labkit's torch_compat, `on_eager_collective` and `compile_backend`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit import torch_compat
from labkit.contract.exchange import ContractError, Exchange, listed

__all__ = ["Domain", "WrongGroup"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class WrongGroup(ContractError):
    """A collective was asked of another group than the code belongs to, or a rank is in code that is not its own."""


@dataclass(frozen=True)
class Domain:
    """Ranks that have to be alike, out of a world whose ranks need not be. `Domain.define` makes one.

    `exchange` is the members' own: parity, plans, inputs and compile health are compared within it, by the same parts
    that compare them within the world.

    Args:
        name: A name such as 'mesh'.
        ranks: Its members, by their numbers in the world.
        rank: This rank, a member or not.
        group: The process group. On a rank outside it is torch's mark of a group that it is not in, and not None,
            which would mean the world.
        own: The members' exchange; None outside.
        place: A function from a file and a line to the text of a place.
    """

    name: str
    ranks: tuple[int, ...]
    rank: int
    group: Any = None
    own: Exchange | None = None
    place: Callable[[str, int], str] = field(
        default=lambda file, line: f"{os.path.basename(file)}:{line}", repr=False
    )

    @classmethod
    def define(
        cls,
        world: Exchange,
        name: str,
        ranks: Sequence[int],
        place: Callable[[str, int], str] | None = None,
    ) -> Domain:
        """Make the group on *every* rank of the world, after all ranks have said that they mean the same one.

        By default `torch.distributed.new_group` wants every rank of the world, members or not, in the same order; one
        that leaves a call out strands the others in a later one. Here that is an error on every rank that came. Where
        torch.distributed is not initialised, as in a rehearsal, there is no group.

        Args:
            world: the exchange of all ranks.
            name: a name such as 'mesh'.
            ranks: the members, by their numbers in the world.
            place: a function from a file and a line to the text of a place, for messages.

        Returns:
            The domain, on members and on ranks outside.

        Raises:
            ValueError: there are no members, one is named twice, or one is not in the world.
            WrongGroup: the ranks mean different members; the message has those of each rank.
            ContractError: a rank is elsewhere in its program.
            Absent: a rank does not come.

        >>> from labkit.contract.exchange import rehearse
        >>> def compare(world):
        ...     mesh = Domain.define(world, "mesh", [1, 2])
        ...     return mesh.exchange.gather("graphs", 1) if mesh.member else "outside"
        >>> rehearse(3, compare)
        ['outside', {1: 1, 2: 1}, {1: 1, 2: 1}]
        """
        import torch.distributed as dist

        members = tuple(sorted(ranks))
        wrong = [rank for rank in members if rank not in world.ranks]
        if not members or wrong or len(set(members)) < len(members):
            why = f"rank {wrong[0]} is not in the world" if wrong else "each of its ranks is named once"
            raise ValueError(
                f"domain {name!r} of ranks {list(ranks)}: {why if members else 'it has no rank'}"
            )
        said = world.gather(f"domain {name}", list(members))
        if len({tuple(theirs) for theirs in said.values()}) > 1:
            each = ", ".join(f"rank {rank} says {listed(theirs)}" for rank, theirs in said.items())
            raise WrongGroup(f"the ranks disagree on who is in {name!r}: {each}")
        group = dist.new_group(list(members), group_desc=name) if dist.is_initialized() else None
        own = None
        if world.rank in members:
            own = Exchange(world.store, world.rank, members, f"{world.name}/{name}", world.timeout)
        rest = {} if place is None else {"place": place}
        return cls(name, members, world.rank, group, own, **rest)

    @property
    def member(self) -> bool:
        """Whether this rank is a member."""
        return self.rank in self.ranks

    @property
    def exchange(self) -> Exchange:
        """The exchange of the members.

        Raises:
            WrongGroup: this rank is outside; it would wait there for nobody.
        """
        if self.own is None:
            raise WrongGroup(f"{self._stranger()} and has no part in its exchanges")
        return self.own

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Enter a block of the members' own code, in which an eager collective of another group is an error.

        The error comes before the collective starts. `get_world_size` of another group is an error as well, because it
        makes a wrong mean. Sends and receives pass: they name their peer. A functional collective in eager is not
        seen; those of compiled code are checked by `backend`.

        Raises:
            WrongGroup: this rank is outside, or its code asked another group.

        >>> import torch.distributed as dist
        >>> with Domain("mesh", (1, 2), rank=0).inside():
        ...     dist.barrier()
        Traceback (most recent call last):
        labkit.contract.domain.WrongGroup: rank 0 is outside of 'mesh' (ranks 1 and 2) and must not enter its code
        """
        if not self.member:
            raise WrongGroup(f"{self._stranger()} and must not enter its code")
        try:
            with torch_compat.on_eager_collective(self._check):
                yield
        except Exception as error:
            # Dynamo wraps what a backend raises; c10d, which logs every error with its group, fails at one it is not in
            for cause in (getattr(error, "inner_exception", None), error.__context__):
                if isinstance(cause, WrongGroup):
                    raise cause.with_traceback(error.__traceback__) from None
            raise

    def backend(self, compiler: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
        """Make a backend for `torch.compile` that refuses a graph with a collective of another group.

        The graph is looked at once, when it is compiled, so that no call pays for it, and every member refuses it
        before any enters the collective. The error is WrongGroup, which Dynamo wraps and `inside` unwraps.

        Args:
            compiler: the backend that compiles the graph, by its name or as a function.

        Returns:
            The backend.
        """
        inner = torch_compat.compile_backend(compiler) if isinstance(compiler, str) else compiler

        def checked(graph: Any, inputs: Any) -> Any:
            if not self.member:
                raise WrongGroup(f"{self._stranger()} and must not compile its graphs")
            for op, group, file, line in _collectives(graph):
                if group != self.group.group_name:
                    at = f" at {self.place(file, line)}" if file else ""
                    raise WrongGroup(self._meant(f"{op}{at} is compiled for {_called(group)}"))
            return inner(graph, inputs)

        return checked

    def _check(self, name: str, group: Any) -> None:
        if group is not None and not hasattr(group, "group_name"):
            raise WrongGroup(self._meant(f"{name} is asked of a group that rank {self.rank} is not in"))
        asked = _world() if group is None else group
        if asked.group_name != self.group.group_name:
            raise WrongGroup(self._meant(f"{name} is asked of {_called(asked.group_name)}"))

    def _meant(self, said: str) -> str:
        return f"in the code of {self.name!r} (ranks {listed(self.ranks)}): {said}"

    def _stranger(self) -> str:
        return f"rank {self.rank} is outside of {self.name!r} (ranks {listed(self.ranks)})"


def _world() -> Any:
    import torch.distributed as dist

    return dist.group.WORLD


def _called(name: str) -> str:
    """A group in words: the world, which is what no `group=` means, or its name in torch."""
    return "the world, with every rank in it" if name == _world().group_name else f"group {name!r}"


def _collectives(graph: Any) -> Iterator[tuple[str, str, str, int]]:
    """The collectives of a graph of Dynamo's: operation, name of the group, and file and line of the user's code.

    Graphs inside the graph, such as those of a checkpoint, count as well.
    """
    import torch

    library = os.path.dirname(torch.__file__) + os.sep
    for node in (node for part in graph.modules() if hasattr(part, "graph") for node in part.graph.nodes):
        schema = getattr(getattr(node.target, "default", node.target), "_schema", None)
        if node.op != "call_function" or schema is None or "c10d" not in schema.name:
            continue
        named = [argument.name for argument in schema.arguments]
        given = dict(zip(named, node.args, strict=False)) | dict(node.kwargs)
        group = given.get("group_name")
        if group is None:
            continue
        theirs = [at for at in _FRAME.findall(node.meta.get("stack_trace") or "") if library not in at[0]]
        file, line = theirs[-1] if theirs else ("", 0)
        yield schema.name.rpartition("::")[2], str(getattr(group, "group_name", group)), file, int(line)
