"""A contract between the ranks of a job: what differs is an error on every rank now, and not a hang later.

    exchange = Exchange.connect()  # over the store of torchrun; or Exchange(store, rank, world_size)
    alike(exchange, "settings", settings(env=["NCCL_ALGO"], effective={"attention": model.backend}))
    warm_up(exchange, lambda: model(batch), budget=600)
    torch.compiler.set_stance("fail_on_recompile")
    ...
    plan = announce(exchange, Plan("infer", {"x": x}, calls=2) if rank == 0 else None)
    with executing(plan, exchange) as step:  # and step() before each call

Copy this file; take the parts that you need. It needs torch (2.11 or later) alone. `break_it.py`, which stands beside
it, tests these defences, each with the fault that it is for.

All ranks make the same checks in the same order. They talk over the store, not with collectives: a check that is a
collective can pair with a stray one, or hang with it. A wait for the store ends, and names who has not come.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import pickle
import platform
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch.distributed as dist

ORPHANED = 17  # exit status of a worker whose leader is silent
WARMUP = -1  # the index of a call that serves nobody
NOT_SET = "(not set)"


class ContractError(RuntimeError):
    """A part of the contract is broken. What is compared is compared everywhere, so every rank raises."""


class Absent(ContractError):
    """A rank did not come to a check within its deadline."""


class WrongGroup(ContractError):
    """A collective was asked of another group than the code belongs to, or a rank is in code that is not its own."""


class PreflightError(ValueError):
    """Something cannot be sent; no peer has heard of it."""


# --- the exchange of values, and what is compared ---

_made: Counter[tuple[str, int]] = Counter()


class Exchange:
    """Gathers values of ranks over a c10d store. Values are pickled: this is for ranks of one job.

    Args:
        store: A c10d store that these ranks reach.
        rank: This rank.
        ranks: The number of ranks, or a list of those that take part. Other ranks are not waited for.
        name: Keeps the keys of several exchanges apart.
        timeout: Seconds that one check waits for a rank that does not come.
    """

    def __init__(
        self, store: Any, rank: int, ranks: int | Sequence[int], name: str = "contract", timeout: float = 10.0
    ) -> None:
        self.ranks = sorted(range(ranks) if isinstance(ranks, int) else set(ranks))
        if rank not in self.ranks:
            raise ValueError(
                f"rank {rank} is not one of the ranks of exchange {name!r}: {listed(self.ranks)}"
            )
        self.store, self.rank, self.name, self.timeout = store, rank, name, positive(timeout)
        self.number, self.life = 0, _made[name, rank]
        _made[name, rank] += 1  # a second exchange of this name must not read what the first one left

    @classmethod
    def connect(
        cls, name: str = "contract", ranks: int | Sequence[int] | None = None, timeout: float = 10.0
    ) -> Exchange:
        """Make an exchange on a connection of its own, from the environment variables that torchrun sets."""
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if missing := [key for key in names if not os.environ.get(key)]:
            raise ValueError(f"{', '.join(missing)} is not set: start this with torchrun, or give a store")
        rank, size, host, port = (os.environ[key] for key in names)
        wait = timedelta(seconds=timeout)
        store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=wait)
        return cls(store, int(rank), int(size) if ranks is None else ranks, name, timeout)

    def gather(self, what: str, value: Any, timeout: float | None = None) -> dict[int, Any]:
        """Each rank's value, by rank.

        Args:
            what: What the value is, in a word; the same on every rank.
            value: This rank's value, which can be pickled.
            timeout: In the place of the exchange's own.

        Raises:
            Absent: Ranks did not come in time; it names them.
            ContractError: A rank came with another `what`, or has said that it failed.
        """
        self._write(what, value)
        found = self._read(what, self.timeout if timeout is None else timeout)
        if self.number > 1:  # whoever came here has read what was before
            self.store.delete_key(self._key(self.number - 1, self.rank))
        failed = [f"rank {rank} failed: {why}" for rank, (said, why) in found.items() if said == "failed"]
        if failed:
            raise ContractError("; ".join(failed))
        if any(said != what for said, _ in found.values()):
            each = by_rank({rank: f"at {said!r}" for rank, (said, _) in found.items()})
            raise ContractError(f"the ranks are not at the same check, number {self.number}: {each}")
        return {rank: value for rank, (_, value) in found.items()}

    def fail(self, why: str) -> None:
        """Tell the other ranks at their next check that this rank has failed, and do not wait for them."""
        self._write("failed", why)

    def _write(self, what: str, value: Any) -> None:
        self.number += 1
        self.store.set(self._key(self.number, self.rank), pickle.dumps((what, value)))

    def _read(self, what: str, timeout: float) -> dict[int, tuple[str, Any]]:
        keys = {rank: self._key(self.number, rank) for rank in self.ranks}
        try:
            self.store.wait(list(keys.values()), timedelta(seconds=timeout))
        except RuntimeError as error:  # the deadline, or the store itself is gone
            absent: list[int] = []
            with contextlib.suppress(RuntimeError):
                absent = [rank for rank, key in keys.items() if not self.store.check([key])]
            who = f"rank{'s' * (len(absent) > 1)} {listed(absent)}" if absent else "the store"
            raise Absent(f"{who} did not come to {what!r} within {timeout:g} s") from error
        return {rank: pickle.loads(self.store.get(key)) for rank, key in keys.items()}

    def _key(self, number: int, rank: int) -> str:
        return f"{self.name}/{self.life}/{number}/{rank}"


def alike(exchange: Exchange, what: str, values: Mapping[str, Any]) -> None:
    """Raise on every rank where one of the values is not the same on all ranks, and name it."""
    every = exchange.gather(what, {name: repr(value) for name, value in values.items()})
    found = {
        name: {rank: mine.get(name, NOT_SET) for rank, mine in every.items()}
        for name in sorted(set().union(*every.values()))
    }
    differ = [f"    {name}: {by_rank(said)}" for name, said in found.items() if len(set(said.values())) > 1]
    if differ:
        raise ContractError(
            "\n".join([f"{what} differ between ranks ({len(differ)} of {len(found)}):", *differ])
        )


def by_rank(values: Mapping[int, Any]) -> str:
    return ", ".join(f"rank {rank} {value}" for rank, value in values.items())


def listed(items: Iterable[Any]) -> str:
    *words, last = map(str, items)
    return f"{', '.join(words)} and {last}" if words else last


def positive(seconds: float) -> float:
    if not seconds > 0:
        raise ValueError(f"a number of seconds has to be positive, got {seconds!r}")
    return seconds


def settings(
    env: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    effective: Mapping[str, Callable[[], Any]] | None = None,
    versions: bool = True,
) -> dict[str, Any]:
    """What changes graphs or the choice of kernels on this rank, for `alike`: at start-up, and after any change.

    Args:
        env: Names of environment variables.
        flags: Values as they were asked for, such as the degree of parallelism.
        effective: Functions that return what was chosen here, such as the attention backend: 'auto' on two ranks can
            mean two kernels. An exception is a value, too.
        versions: Whether to add those of Python, torch and CUDA, the device, and torch's global switches.
    """
    found: dict[str, Any] = {f"env {name}": os.environ.get(name, NOT_SET) for name in env}
    found |= {f"flag {name}": value for name, value in (flags or {}).items()}
    for name, resolve in (effective or {}).items():
        try:
            found[f"{name} in effect"] = resolve()
        except Exception as error:
            found[f"{name} in effect"] = f"{type(error).__name__}: {error}"
    if versions:
        found |= {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
        found["float32 matmul"] = torch.get_float32_matmul_precision()
        found["deterministic"] = torch.are_deterministic_algorithms_enabled()
        found["default dtype"], found["grad enabled"] = torch.get_default_dtype(), torch.is_grad_enabled()
        if torch.cuda.is_available():
            found["device"] = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    return found


# --- the plan of a call ---


@dataclass
class Plan:
    """One call as every rank has to run it.

    Args:
        action: What to do, such as 'infer', 'noop', 'shutdown'.
        tensors: What is sent, by name; kept as text such as '(2, 8) torch.float32'.
        phases: Optional phases, and whatever else changes the number of calls, by name.
        calls: The names of the calls that will be made, in order, or their number.
        epochs: Those of caches and control, where they are used.
        index: The number of this call; -1 is a warmup.
    """

    action: str
    tensors: Mapping[str, Any] = field(default_factory=dict)
    phases: Mapping[str, Any] = field(default_factory=dict)
    calls: Any = ()
    epochs: Mapping[str, int] = field(default_factory=dict)
    index: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.calls, int):
            if self.calls < 0:
                raise ValueError(f"a plan cannot have {self.calls} calls")
            self.calls = ["call"] * self.calls
        self.calls = tuple(self.calls)
        self.tensors = {name: f"{tuple(x.shape)} {x.dtype}" for name, x in self.tensors.items()}

    def facts(self) -> dict[str, Any]:
        """What two ranks have to plan alike, by name."""
        found = {"action": self.action, "index": self.index, "number of calls": len(self.calls)}
        found |= {f"tensor {name}": kind for name, kind in self.tensors.items()}
        found |= {f"phase {name}": value for name, value in self.phases.items()}
        found |= {f"epoch {name}": value for name, value in self.epochs.items()}
        return found | {f"call {i}": name for i, name in enumerate(self.calls, 1)}


def agree(exchange: Exchange, mine: Plan) -> Plan:
    """Raise on every rank where ranks that each made a plan of their own plan different calls."""
    alike(exchange, "plans", mine.facts())
    return mine


def announce(exchange: Exchange, plan: Any = None, leader: int = 0) -> Any:
    """The leader's plan, on every rank. Workers give none: they follow, and derive nothing of their own."""
    every = exchange.gather("announced plan", plan)
    given = [rank for rank, said in every.items() if said is not None]
    if given != [leader]:
        raise ContractError(f"rank {leader} leads and gives the plan; it was given by {given or 'no rank'}")
    return every[leader]


@contextlib.contextmanager
def executing(plan: Plan, exchange: Exchange | None = None) -> Iterator[Callable[..., None]]:
    """Count the calls in a block: `step(name)` stands before each, so that one that is not planned is never made.

    A call too many, too few or of another name raises, and peers that wait at a check hear of it. An exception in the
    block passes through.
    """
    seen, planned = 0, plan.calls

    def broken(said: str) -> None:
        if exchange is not None:
            said = f"rank {exchange.rank}: {said}"
            exchange.fail(said)
        raise ContractError(said)

    def step(name: str = "call") -> None:
        nonlocal seen
        if planned[seen : seen + 1] != (name,):
            was = f"was {planned[seen]!r}" if seen < len(planned) else f"were {len(planned)} calls"
            broken(f"call {seen + 1} is {name!r}, planned {was}")
        seen += 1

    yield step
    if seen != len(planned):
        broken(f"{seen} calls were made, planned were {len(planned)}")


# --- drift: digests of inputs, fingerprints of weights ---


def digest(x: torch.Tensor) -> str:
    """Sixteen hex digits of a tensor's bits, with its dtype and shape: a NaN equals itself, and -0.0 is not 0.0."""
    flat = x.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    found = hashlib.blake2b(f"{tuple(x.shape)} {x.dtype}".encode(), digest_size=8)
    if flat.numel():
        found.update(flat.view(torch.uint8).numpy())
    return found.hexdigest()


class InputDigests:
    """Compares the inputs of every so many calls between ranks, bit for bit; 0 compares none, as after bring-up.

    `settings` is for `alike`, so that no rank waits for a digest that another one does not send.
    """

    def __init__(self, exchange: Exchange, every: int = 1) -> None:
        if every < 0:
            raise ValueError(f"every has to be 0 (off) or a number of calls, got {every}")
        self.exchange, self.every, self.settings = exchange, every, {"input digests, every": every}

    def check(self, index: int, /, **tensors: torch.Tensor) -> bool:
        """Compare the tensors of this call, where it is due; return whether it was. A warmup (-1) never is."""
        if not (self.every > 0 and index >= 0 and index % self.every == 0):
            return False
        mine = {name: digest(x) for name, x in tensors.items()}
        alike(self.exchange, "inputs", {"number of the call": index, **mine})
        return True


def fingerprint(x: torch.Tensor) -> int:
    """A sum of a tensor's bits, weighted by position, exact, on the tensor's device: for accidents, cheap on a GPU."""
    flat = x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits, total = (
        flat.view(integers[flat.element_size()]),
        torch.zeros((), dtype=torch.int64, device=x.device),
    )
    chunk = 1 << 20  # a sum in int64 needs up to eight times the memory
    # odd weights: one changed element changes the sum, also where it wraps; they come again after a prime number, so
    # two elements that swap places change it unless they stand a multiple of that apart
    weights = torch.arange(min(chunk, len(bits)), device=x.device)
    for start in range(0, len(bits), chunk):
        part = bits[start : start + chunk]
        total += (part.to(torch.int64) * (2 * ((weights[: len(part)] + start) % 8191) + 1)).sum()
    return int(total)


class Fingerprints:
    """Compares each rank's weights with what they were, and replicas between ranks.

    Shards differ between ranks by right. Call `take()` on all ranks after an update that is meant.

    Args:
        exchange: How the ranks tell each other values.
        weights: By name, such as `dict(model.named_parameters())`.
        replicated: Names of those that are the same on every rank.
    """

    def __init__(
        self, exchange: Exchange, weights: Mapping[str, torch.Tensor], replicated: Iterable[str] = ()
    ) -> None:
        self.exchange, self.weights, self.replicated = exchange, dict(weights), list(replicated)
        if missing := [name for name in self.replicated if name not in self.weights]:
            raise ValueError(f"replicated, and no weights here: {listed(missing)}")
        self.take()

    def take(self) -> None:
        """Remember the weights as they are; raise on every rank where a replica is not the same on all."""
        self.kept = {name: fingerprint(x) for name, x in self.weights.items()}
        alike(self.exchange, "replicas", {name: self.kept[name] for name in self.replicated})

    def check(self) -> None:
        """Raise on every rank where a weight of one has changed."""
        mine = [name for name, x in self.weights.items() if fingerprint(x) != self.kept[name]]
        changed = {rank: names for rank, names in self.exchange.gather("weights", mine).items() if names}
        if changed:
            raise ContractError(f"weights changed: {by_rank(changed)}")


# --- what was compiled, and the warmup ---


def compiled() -> dict[str, int]:
    """How many graphs and breaks Dynamo has counted in this process."""
    counters = torch._dynamo.utils.counters
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}


def since(before: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in compiled().items()}


@contextlib.contextmanager
def compile_health() -> Iterator[dict[str, int]]:
    """Count what a block compiles: a dict for `alike`, with graphs, breaks, and breaks by their reason, at its end.

    These are torch's own counters. A break counts once, when it is compiled, and not at all where Dynamo gives up its
    frame, as in a loop: with `fullgraph=True` that is an error. How many breaks a step executes is not in them:
    `oddrank.record.record()` has that (`rec.counts`).
    """
    health: dict[str, int] = {}
    before, reasons = compiled(), _reasons()
    try:
        yield health
    finally:
        health |= since(before)
        health |= {f"break, {why}": count for why, count in (_reasons() - reasons).items()}


def _reasons() -> Counter[str]:
    found: Counter[str] = Counter()
    for text, count in torch._dynamo.utils.counters["graph_break"].items():
        found[str(text).strip().partition("\n")[0]] += count
    return found


def warm_up(
    exchange: Exchange,
    call: Callable[[], Any],
    rounds: int = 5,
    timeout: float = 600.0,
    prepare: Callable[[], Any] = lambda: None,
    budget: float = float("inf"),
) -> list[float]:
    """Call `call()` on every rank, round by round, until a round in which no rank compiles; then compare the ranks.

    Args:
        exchange: How the ranks tell each other values.
        call: The very function that serves, with the shapes and flags that it will serve. Its plans have the index -1.
        rounds: The most rounds.
        timeout: Seconds that a rank waits between two rounds for the slowest compile of the others.
        prepare: What needs no peer, such as loading a cache. A slow rank is waited for after it, in no collective.
        budget: Seconds that `prepare` and all rounds may take on any rank.

    Returns:
        This rank's seconds for each round.

    Raises:
        ContractError: On all ranks: the last round still compiled, ranks compiled different things, or the slowest
            rank took longer than the budget.
    """
    if rounds < 1:
        raise ValueError(f"a warmup needs at least one round, got {rounds}")
    seconds: list[float] = []
    positive(budget)
    started = time.perf_counter()
    with compile_health() as health:
        prepare()
        prepared = exchange.gather("prepared", time.perf_counter() - started, timeout)
        while True:
            before, began = compiled(), time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
            every = exchange.gather("warmup", compiled() != before, timeout)
            still = [rank for rank, compiles in every.items() if compiles]
            if not still or len(seconds) == rounds:
                break
    alike(exchange, "compile counts", health)
    if still:
        raise ContractError(
            f"after {rounds} rounds of warmup rank{'s' * (len(still) > 1)} {listed(still)} still compiled: "
            "TORCH_LOGS=recompiles names the guard"
        )
    totals = exchange.gather("warm", time.perf_counter() - started, timeout)
    slowest = max(totals, key=lambda rank: (prepared[rank], totals[rank]))
    if max(totals.values()) > budget:
        raise ContractError(
            f"the warmup took {max(totals.values()):.1f} s and may take {budget:g} s; rank {slowest} took longest, "
            f"{prepared[slowest]:.1f} s of them to prepare"
        )
    return seconds


# --- messages ---


@dataclass(frozen=True)
class Packed:
    """A message that is ready to go: its metadata as bytes, and tensors that are contiguous."""

    body: bytes
    tensors: tuple[torch.Tensor, ...]


def preflight(meta: Any, tensors: Mapping[str, Any] | None = None, device: Any = None) -> Packed:
    """A message of metadata that can be pickled and of dense tensors on one device, without any communication.

    What cannot be sent raises PreflightError here and now, while no peer waits for it.
    """
    given = dict(tensors or {})
    for name, x in given.items():
        if not isinstance(x, torch.Tensor):
            raise PreflightError(f"tensor {name!r} is a {type(x).__name__}, not a torch.Tensor")
        if x.layout is not torch.strided:
            raise PreflightError(f"tensor {name!r} is {x.layout}: only dense tensors can be sent")
        first = next(iter(given.values())).device if device is None else torch.device(device)
        if x.device.type != first.type:
            raise PreflightError(f"tensor {name!r} is on {x.device}, and {first} was expected")
    try:
        body = pickle.dumps((meta, {name: (tuple(x.shape), x.dtype) for name, x in given.items()}))
    except Exception as error:  # an object's own pickling can raise anything
        raise PreflightError(f"{_culprit(meta)} cannot be pickled: {error}") from error
    return Packed(body, tuple(x.detach().contiguous() for x in given.values()))


def _culprit(meta: Any) -> str:
    for name, value in meta.items() if isinstance(meta, Mapping) else ():
        try:
            pickle.dumps(value)
        except Exception:
            return f"meta {name!r} ({type(value).__name__})"
    return "the metadata"


def send(packed: Packed, group: Any = None, device: Any = "cpu") -> None:
    """Broadcast a message from this rank: a header, the metadata, then each tensor. The others call `receive`."""
    me = dist.get_rank()
    body = torch.frombuffer(bytearray(packed.body), dtype=torch.uint8).to(device)
    for x in (torch.tensor([len(body)], device=device), body, *packed.tensors):
        dist.broadcast(x, me, group=group)


def receive(source: int = 0, group: Any = None, device: Any = "cpu") -> tuple[Any, dict[str, torch.Tensor]]:
    """The metadata, and the tensors by name, that rank `source` sends. `device` is the same on all ranks."""
    header = torch.zeros(1, dtype=torch.int64, device=device)
    dist.broadcast(header, source, group=group)
    body = torch.zeros(int(header), dtype=torch.uint8, device=device)
    dist.broadcast(body, source, group=group)
    meta, kinds = pickle.loads(body.cpu().numpy().tobytes())
    tensors = {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in kinds.items()}
    for x in tensors.values():
        dist.broadcast(x, source, group=group)
    return meta, tensors


# --- crash rather than hang ---


def beat(store: Any, every: float = 0.2) -> Callable[[], None]:
    """Write the keys of a watchdog, and change `heartbeat` from a thread until the function that is returned is called.

    A heartbeat says that the process lives, not that it gets on. So the leader's main loop changes `step` itself:
    `store.set("step", str(number))` after each one.
    """
    store, over = own(store), threading.Event()
    for key in ("step", "heartbeat"):
        store.set(key, "0")

    def beats(count: int = 0) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it whoever listened
            while not over.wait(every):
                store.set("heartbeat", str(count := count + 1))

    positive(every)
    threading.Thread(target=beats, daemon=True, name="heartbeat").start()
    return over.set


def leave(why: str) -> None:
    os.write(2, f"watchdog: {why}, this worker leaves with exit status {ORPHANED}\n".encode())
    os._exit(ORPHANED)


def watchdog(
    store: Any,
    window: float,
    patience: float = float("inf"),
    on_silence: Callable[[str], Any] = leave,
) -> Callable[[], None]:
    """End this process where the leader's `heartbeat` stands still for `window` s, or its `step` for `patience` s.

    It works while the main thread is stuck in a collective. A store that cannot be reached counts as silence. Call
    what is returned before the leader stops its beats by right.

    Args:
        store: The store of the leader's `beat`; better not one that the leader itself hosts.
        window: More than the longest time between two beats.
        patience: More than the longest step, often a compile.
        on_silence: Called once, with the reason, in the place of the end with status 17.
    """
    limits = {"heartbeat": positive(window), "step": positive(patience)}
    store, over = own(store), threading.Event()
    changed, last = dict.fromkeys(limits, time.monotonic()), dict[str, bytes]()

    def listen() -> None:
        while not over.wait(window / 10):
            for key in limits:
                with contextlib.suppress(RuntimeError):
                    # these do not return while the process that hosts the store is stopped
                    now = store.get(key) if store.check([key]) else None
                    if now != last.get(key):
                        last[key], changed[key] = now, time.monotonic()

    def watch() -> None:
        pause, awake = window / 10, time.monotonic()
        while not (late := [key for key in limits if time.monotonic() - changed[key] > limits[key]]):
            if over.wait(pause):
                return
            now = time.monotonic()
            lost, awake = max(0.0, now - awake - 2 * pause), now
            # this process stood still (Python's lock): that says nothing about the leader
            for key in changed:
                changed[key] = min(now, changed[key] + lost)
        on_silence(f"the leader's {late[0]} has not changed for {limits[late[0]]:g} s")

    for part in (listen, watch):
        threading.Thread(target=part, daemon=True, name="watchdog").start()
    return over.set


def own(store: Any) -> Any:
    """A connection of its own, where the store has one: on a shared one a thread waits for whoever waits on it."""
    with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError):
        return store.clone()
    return store


@contextlib.contextmanager
def crash_after(seconds: float) -> Iterator[None]:
    """End the process (exit status 1, all stacks on stderr) unless the block ends in time; one at a time in a process.

    The stacks are written without Python's help, so a collective that keeps the interpreter's lock does not stop it.
    """
    faulthandler.dump_traceback_later(positive(seconds), exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


# --- domains ---


@dataclass(frozen=True)
class Domain:
    """Ranks that have to be alike, out of a world whose ranks need not be; `define` makes one.

    A collective that is asked of the wrong group, and a rank in a group's code that is not its own, end in an error
    before anybody waits. `own` is the members' exchange, for all checks above; `group` their process group.
    """

    name: str
    ranks: tuple[int, ...]
    rank: int
    group: Any = None  # outside: torch's mark of a group that a rank is not in, for None means the world
    own: Exchange | None = None

    @classmethod
    def define(cls, world: Exchange, name: str, ranks: Iterable[int]) -> Domain:
        """Make the group on *every* rank of the world, after all ranks have said that they mean the same one.

        `torch.distributed.new_group` wants every rank of the world in it; one that leaves a call out strands the others
        in a later one. Where torch.distributed is not initialised there is no group.
        """
        members = tuple(sorted(ranks))
        if not members or len(set(members)) < len(members) or not set(members) <= set(world.ranks):
            raise ValueError(f"domain {name!r} needs ranks of the world, each once; got {list(members)}")
        said = world.gather(f"domain {name}", members)
        if len(set(said.values())) > 1:
            raise WrongGroup(f"the ranks disagree on who is in {name!r}: {by_rank(said)}")
        group = dist.new_group(list(members), group_desc=name) if dist.is_initialized() else None
        inside = world.rank in members
        own = (
            Exchange(world.store, world.rank, members, f"{world.name}/{name}", world.timeout)
            if inside
            else None
        )
        return cls(name, members, world.rank, group, own)

    @property
    def member(self) -> bool:
        return self.rank in self.ranks

    @property
    def exchange(self) -> Exchange:
        """The members' exchange; outside WrongGroup, for a rank would wait there for nobody."""
        if self.own is None:
            raise WrongGroup(f"{self._stranger()} and has no part in its exchanges")
        return self.own

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A block of the members' own code, in which an eager collective of another group is an error before it starts.

        So is `get_world_size` of another group, which makes a wrong mean. Sends and receives pass: they name their
        peer. A functional collective in eager is not seen; those of compiled code are checked by `backend`.
        """
        if not self.member:
            raise WrongGroup(f"{self._stranger()} and must not enter its code")
        c10d = dist.distributed_c10d
        usual, passes = (
            c10d._rank_not_in_group,
            ("get_rank", "get_backend", "_", "isend", "irecv", "send", "recv"),
        )

        @torch.compiler.disable
        def asked(group: Any) -> bool:  # what each collective asks first
            frame: Any = sys._getframe(1)
            while frame.f_code.co_filename != c10d.__file__:  # what Dynamo puts in between
                frame = frame.f_back
            name, caller = frame.f_code.co_name, frame.f_back.f_code.co_filename
            inner = name == "get_world_size" and caller.startswith(os.path.dirname(c10d.__file__))
            if not inner and not name.startswith(passes):
                self._check(name, group)
            return usual(group)

        try:
            with mock.patch.object(c10d, "_rank_not_in_group", asked):
                yield
        except Exception as error:
            # Dynamo wraps what a backend raises; c10d, which logs every error with its group, fails at one it is not in
            for cause in (getattr(error, "inner_exception", None), error.__context__):
                if isinstance(cause, WrongGroup):
                    raise cause.with_traceback(error.__traceback__) from None
            raise

    def backend(self, compiler: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
        """A backend of `torch.compile` that refuses a graph with a collective of another group as it compiles it."""
        inner = torch._dynamo.lookup_backend(compiler) if isinstance(compiler, str) else compiler

        def checked(graph: Any, inputs: Any) -> Any:
            if not self.member:
                raise WrongGroup(f"{self._stranger()} and must not compile its graphs")
            for op, group, place in collectives(graph):
                if group != self.group.group_name:
                    raise WrongGroup(self._meant(f"{op}{place} is compiled for {_called(group)}"))
            return inner(graph, inputs)

        return checked

    def _check(self, name: str, group: Any) -> None:
        if group is not None and not hasattr(group, "group_name"):
            raise WrongGroup(self._meant(f"{name} is asked of a group that rank {self.rank} is not in"))
        asked = dist.group.WORLD if group is None else group
        if asked.group_name != self.group.group_name:
            raise WrongGroup(self._meant(f"{name} is asked of {_called(asked.group_name)}"))

    def _meant(self, said: str) -> str:
        return f"in the code of {self.name!r} (ranks {listed(self.ranks)}): {said}"

    def _stranger(self) -> str:
        return f"rank {self.rank} is outside of {self.name!r} (ranks {listed(self.ranks)})"


def _called(name: str) -> str:
    return "the world, with every rank in it" if name == dist.group.WORLD.group_name else f"group {name!r}"


def collectives(graph: Any) -> Iterator[tuple[str, str, str]]:
    """The collectives of a graph of Dynamo's and of graphs inside it: operation, name of the group, and the place."""
    library = os.path.dirname(torch.__file__) + os.sep
    for node in (node for part in graph.modules() if hasattr(part, "graph") for node in part.graph.nodes):
        schema = getattr(getattr(node.target, "default", node.target), "_schema", None)
        if node.op != "call_function" or schema is None or "c10d" not in schema.name:
            continue
        names = [argument.name for argument in schema.arguments]
        group = (dict(zip(names, node.args, strict=False)) | dict(node.kwargs)).get("group_name")
        if group is None:
            continue
        frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
        mine = [
            f" at {os.path.basename(file)}:{line}" for file, line in frames if not file.startswith(library)
        ]
        yield schema.name.rpartition("::")[2], str(getattr(group, "group_name", group)), (mine or [""])[-1]
