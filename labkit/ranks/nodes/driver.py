"""The driver's side of ranks on several machines: a starter that asks the agents there to start them."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit import hardware
from labkit.hardware import Choice
from labkit.ranks import spawn, wire
from labkit.ranks.environment import merged
from labkit.ranks.nodes import launch as launching
from labkit.ranks.nodes.launch import MEET_S, Launch
from labkit.ranks.process import LOCAL_PIDS, Process, Starter, StartError, crash_file, now, plumbing

FORK_S = 60.0


@dataclass
class Agent:
    """A torchrun process as the driver knows it: what it has said about itself, and the connection to it."""

    about: dict[str, Any]
    channel: wire.Channel
    gone: bool = False
    forked: dict[int, int | str] = field(default_factory=dict)  # by ticket: the pid, or why it failed

    @property
    def name(self) -> str:
        """Its node and host, for errors."""
        return f"node {self.about['node']} ({self.about['host']})"


class Nodes(Starter):
    """Starts the ranks of a torchrun launch where torchrun has placed them; an argument of `Ranks(start=...)`.

    It is made in rank 0's process, and waits until every other process has connected.

    Args:
        launch: What torchrun has told this process.

    Raises:
        RuntimeError: If ranks did not connect, or have another torch than this process.
    """

    def __init__(self, launch: Launch):
        super().__init__()
        if not hasattr(select, "epoll"):
            raise RuntimeError(f"ranks on torchrun's machines need Linux, this is {sys.platform}")
        self.launch, self.local = launch, spawn.shared()
        self.local.users += 1
        self._token = launching.new_token()
        self._server = socket.create_server(("0.0.0.0", 0), backlog=256)
        self._poll = select.epoll()
        self._poll.register(self.local.fileno(), select.EPOLLIN)
        self._ended: dict[int, int | None] = {}
        self.ended = ChainMap(self._ended, self.local.ended)  # type: ignore[arg-type]
        self._crash: dict[int, int] = {}
        self._ticket = 0
        self._streams: dict[tuple[int, str], socket.socket] = {}
        self._interface = ""
        self.agents: dict[int, Agent] = {}
        mine = launching.own_address(launch.address, launch.port)
        launching.store(launch).set("driver", f"{mine}:{self._server.getsockname()[1]} {self._token}")
        self._meet()
        self.host = "127.0.0.1" if self.count == 1 else "0.0.0.0"

    # -- who is there --------------------------------------------------------------------------------------

    def _meet(self) -> None:
        deadline = now() + MEET_S
        others = set(range(1, self.launch.world_size))
        while others - self.agents.keys():
            self._accept(max(deadline - now(), 0))
            if now() >= deadline and others - self.agents.keys():
                late = ", ".join(map(str, sorted(others - self.agents.keys())))
                self.close(1, f"rank {late} did not come")
                raise RuntimeError(
                    f"torchrun announced {self.launch.world_size} ranks, but rank {late} did not connect"
                )
        torches = {agent.about["torch"] for agent in self.agents.values()} - {hardware.torch_version()}
        if torches:
            versions = f"{hardware.torch_version()} and {', '.join(torches)}"
            why = f"nodes have different versions of torch: {versions}"
            self.close(1, why)
            raise RuntimeError(why)

    def _accept(self, wait: float) -> None:
        if not select.select([self._server], [], [], min(wait, 0.5))[0]:
            return
        sock, _ = self._server.accept()
        said = launching.receive_greeting(sock, self._token)
        if said is None:
            sock.close()
        elif said["kind"] == "stream":
            self._streams[said["ticket"], said["name"]] = launching.keep_alive(sock)
        else:
            agent = Agent(said, wire.Channel(launching.keep_alive(sock)))
            self.agents[said["rank"]] = agent
            self._poll.register(agent.channel.fileno(), select.EPOLLIN)
            if said["node"] != self.launch.node:  # the interface that other machines come in by
                self._interface = launching.interface(sock.getsockname()[0])

    @property
    def count(self) -> int:
        """Number of machines."""
        return len({self.launch.node} | {agent.about["node"] for agent in self.agents.values()})

    def machines(self) -> list[str]:
        """Return what each machine is, in the order of nodes, for the provenance of a report."""
        known = {self.launch.node: f"{hardware.name()} ({self.launch.local_world_size} ranks)"}
        for agent in self.agents.values():
            about = agent.about
            known[about["node"]] = f"{about['hardware']} ({about['local_world_size']} ranks)"
        return [known[node] for node in sorted(known)]

    def choose(self, device: str, backend: str) -> Choice:
        """Choose device and backend for all machines.

        Args:
            device: As for `Ranks`.
            backend: As for `Ranks`.

        Raises:
            ValueError: If they cannot be the same on every machine.
        """
        if backend == "shm" and self.count > 1:
            raise ValueError(
                f"backend 'shm' is the memory of one machine, and these ranks are on {self.count}: use 'gloo'"
            )
        choice = hardware.choose(self.launch.local_world_size, device, backend)
        if choice.device == "cuda":
            for agent in self.agents.values():
                need = agent.about["local_world_size"] if choice.backend == "nccl" else 1
                if agent.about["gpus"] < need:
                    raise ValueError(
                        f"{agent.name} has {agent.about['gpus']} GPUs for {agent.about['local_world_size']} ranks, and "
                        f"{choice.backend} on GPUs was chosen: give --device cpu, or --backend gloo"
                    )
        machines = f"torchrun on {self.count} machine{'s' * (self.count != 1)}"
        return Choice(choice.device, choice.backend, f"{machines}; {choice.why}")

    def refuse_late(self, env: Mapping[str, str | None]) -> None:
        """Raise ValueError if torch has already read one of these variables in the processes that start the ranks."""
        self.local.wait_ready()
        started = self.local.started
        if late := started.late(merged(started.environ, env)):
            raise ValueError(
                f"{', '.join(late)} in env: torch reads this as it is imported, and torchrun's processes have imported "
                "it; set it where torchrun is started"
            )

    # -- what a pool asks of a starter ---------------------------------------------------------------------

    def rank_config(self, rank: int) -> dict[str, Any]:
        """Return what a rank must be told that differs between machines."""
        mine = {"local_rank": self.launch.local_rank, "local_world_size": self.launch.local_world_size}
        if rank == 0:
            return {**mine, "interface": self._interface}
        about = self.agents[rank].about
        kept = {key: about[key] for key in ("local_rank", "local_world_size", "cwd", "path")}
        return kept if self.count == 1 else {**kept, "interface": about["interface"], "host": about["seen"]}

    def fileno(self) -> int:
        return self._poll.fileno()

    def receive(self) -> None:
        """Read what the agents and this machine's zygote have said, without waiting."""
        self.local.receive()
        if self.local.gone:
            raise StartError("the process that starts ranks on this machine has ended")
        for rank, agent in self.agents.items():
            if agent.gone:
                continue
            agent.channel.flush()
            try:
                messages = agent.channel.poll()
            except EOFError:
                agent.gone = True
                self._poll.unregister(agent.channel.fileno())
                continue
            for kind, number, *rest in messages:
                if kind == "forked":
                    agent.forked[number] = rest[0]
                else:
                    pid = _far(rank, number)
                    code, words = rest
                    if pid in self._crash:
                        os.pwrite(self._crash[pid], words.encode(), 0)
                    self._ended[pid] = code

    def has_ended(self, pid: int) -> bool:
        """Whether a rank has ended; one whose machine is gone counts as ended."""
        return pid in self.ended or self._lost(pid)

    def _lost(self, pid: int) -> bool:
        return pid >= LOCAL_PIDS and self.agents[pid // LOCAL_PIDS].gone

    def fork(self, listener: socket.socket | None = None, pipes: Any = plumbing, rank: int = 0) -> Process:
        if rank == 0:
            return self.local.fork(listener, pipes)
        agent = self.agents[rank]
        self._ticket += 1
        ticket = self._ticket
        self.receive()
        if not agent.gone:
            agent.channel.post(wire.frame(("fork", ticket)))
        names = ("calls", "control", "out", "err")
        deadline = now() + FORK_S
        while ticket not in agent.forked or any((ticket, name) not in self._streams for name in names):
            if agent.gone:
                raise StartError(f"rank {rank} cannot be started: {agent.name} is gone")
            if isinstance(why := agent.forked.get(ticket), str):
                raise StartError(f"{agent.name} could not start rank {rank}: {why}")
            if now() > deadline:
                raise StartError(f"{agent.name} took more than {FORK_S:.0f} s to start rank {rank}")
            self._accept(0.05)
            self.receive()
        streams = {name: self._streams.pop((ticket, name)) for name in names}
        for name in ("out", "err"):
            streams[name].setblocking(False)
        pid, crash = _far(rank, int(agent.forked.pop(ticket))), crash_file()
        self._crash[pid] = crash
        calls, control = wire.Channel(streams["calls"]), wire.Channel(streams["control"])
        return Process(pid, calls, control, streams["out"].detach(), streams["err"].detach(), crash)

    def signal(self, pids: list[int], number: int, group: bool = False) -> None:
        self.local.signal([pid for pid in pids if pid < LOCAL_PIDS], number, group)
        for pid in pids:
            if pid >= LOCAL_PIDS and not self._lost(pid):
                own = [pid % LOCAL_PIDS]
                self.agents[pid // LOCAL_PIDS].channel.post(wire.frame(("signal", own, int(number), group)))

    def kill(self, processes: list[Process], limit: float = 10.0) -> None:
        far = [p for p in processes if p.pid >= LOCAL_PIDS]
        self.signal([p.pid for p in far], signal.SIGKILL, group=True)
        self.local.kill([p for p in processes if p.pid < LOCAL_PIDS])
        self.wait_ended([p.pid for p in far], limit)
        for process in far:
            self._crash.pop(process.pid, None)
            process.code = self._ended.pop(process.pid, None)
            process.close()

    def close(self, status: int = 0, why: str = "") -> None:
        """Tell every agent that the run is over.

        Args:
            status: The exit status to leave with.
            why: For a failure, the reason.
        """
        for agent in self.agents.values():
            if not agent.gone:
                agent.channel.post(wire.frame(("end", status, why)))
                agent.channel.close()
                agent.gone = True
        self._server.close()
        self._poll.close()


def _far(rank: int, pid: int) -> int:
    """One number for a process of another agent, distinct from every pid of this machine."""
    return rank * LOCAL_PIDS + pid
