"""What to say of a simulation that came to a stop: which ops wait for each other, or for what never comes."""

from __future__ import annotations

from typing import Any

from labkit.lessons.shared.streams.nodes import Node

__all__ = ["Standing"]


class Standing:
    """A simulation that came to a stop."""

    def __init__(self, done: Any) -> None:
        self.hosts, self.nodes, self.meetings = done.hosts, done.nodes, done.meetings

    def say(self, stuck: list[Node]) -> str:
        """Say who waits for whom, from one op around to itself, or to what never comes."""
        first = next((n for n in stuck if self._blocked_by(n) is None), stuck[0])
        chain, node = [first], self._blocked_by(first)
        if node is None:
            return f"deadlock: {self._say(first)} waits for what never comes: {self._missing(first)}"
        while node is not None and node not in chain:
            chain.append(node)
            node = self._blocked_by(node)
        chain = chain[chain.index(node) :] if node is not None else chain
        said = [self._say(n) for n in chain if n.kind != "record" or len(chain) < 3]
        return "deadlock: " + ", which waits for ".join([*said, said[0]])

    def _say(self, node: Node) -> str:
        where = self.hosts[node.rank].program.where(node.index)
        return f"rank {node.rank}'s {where}" if len(self.hosts) > 1 else where

    def _blocked_by(self, node: Node) -> Node | None:
        """A node that has to come first and has not."""
        before = [other for _, other in node.after if not other.done]
        if node.behind and not node.behind.done:
            before.append(node.behind)
        if before:
            return before[0]
        if node.kind == "collective" and len(self.hosts) > 1:
            here = {n.rank for members in self.meetings.values() if node in members for n in members}
            absent = [rank for rank in self.hosts if rank not in here]
            unmet = (n for n in self.nodes if n.rank in absent and n.name == node.name and not n.done)
            return next(unmet, None)
        return None

    def _missing(self, node: Node) -> str:
        hosts = [h for h in self.hosts.values() if h.waits_for]
        here = {n.rank for members in self.meetings.values() if node in members for n in members}
        absent = [rank for rank in self.hosts if rank not in here]
        said = f"{node.name!r} on rank {', '.join(map(str, absent))}"
        for host in hosts:
            where = host.program.where(host.at - 1)
            said += f"; the host{f' of rank {host.rank}' if len(self.hosts) > 1 else ''} stands at {where}"
        return said
