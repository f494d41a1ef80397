"""Eleven tests that break a distributed program on purpose, to see whether its defences still work.

    torchrun --standalone --nproc-per-node 2 break_it.py                 # all
    torchrun --standalone --nproc-per-node 2 break_it.py smoke digest    # some
    torchrun --standalone --nproc-per-node 2 break_it.py --json FILE     # what came of each run, as data

Each test runs three times, each time in fresh processes that the processes of torchrun fork:

    fault + defence    must end as the test expects, with the words that it expects
    fault alone        must not, or the test tests nothing
    right program      with the defence on, must be let through, with right results

The exit status is 1 where one of the three is not so. The defences are in contract.py. Copy both files into one folder,
and put your own program into the tests. They need torch (2.11 or later) and Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import pickle
import re
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import contract
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from contract import ContractError, Exchange, alike, announce, beat, compiled, since, watchdog

WINDOW_S = 2.0  # the longest time between two beats of a leader's process
PATIENCE_S = 3 * WINDOW_S  # the longest time between two of its steps; more than the slowest compile of yours
SHORT_S, LONG_S = 5.0, 90.0  # time limit of a collective where most tests expect a wait, and elsewhere
INFER = 1  # the header of a message: a body follows
TORCH = os.path.dirname(torch.__file__)
KNOWN_BREAK = "kv = cache[:, :4] if end < 5 else cache"  # the one place where the program may break the graph
LOG = logging.getLogger("break_it")
RUNS = {"fault + defence": (True, True), "fault alone": (True, False), "right program": (False, True)}


@dataclass
class Job:
    """What a test gets to know of its rank."""

    rank: int
    world: int
    store: Any
    exchange: Exchange
    device: str = "cpu"

    @property
    def last(self) -> bool:
        """Whether this is the rank on which something is broken."""
        return self.rank == self.world - 1


@dataclass
class End:
    """How one rank ended: 'returned', 'raised', 'waited' (until a time limit) or 'exited'."""

    how: str
    value: Any = None
    said: str = ""
    code: int = 0


# --- defences ---


class Traced(Exception):
    """The whole function has become one graph, and nothing of it has run."""


def trace_only(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A backend of torch.compile whose functions run nothing."""

    def run(*args: Any) -> Any:
        raise Traced

    return run


def first_break(function: Callable[..., Any], *args: Any) -> str:
    """The lines that lead to the first graph break, '' where there is none; nothing of what is compiled runs."""
    try:
        torch.compile(function, backend=trace_only, fullgraph=True)(*args)
    except Traced:
        return ""
    except torch._dynamo.exc.Unsupported as error:
        mine = [frame.line or "?" for frame in error.real_stack if not frame.filename.startswith(TORCH)]
        return " > ".join(mine) or str(error).splitlines()[0]
    except Exception as error:  # of one rank: all ranks have to hear of it
        return f"{type(error).__name__}: {error}"
    return "nothing was compiled"  # as under the stance force_eager


def send(meta: Any, preflight: bool) -> None:
    """Broadcast a message: a header, and its body. A preflight packs the body before the header."""
    packed = contract.preflight(meta) if preflight else None
    dist.broadcast(torch.tensor([INFER]), 0)  # from here on the others wait for a body
    contract.send(packed or contract.Packed(pickle.dumps((meta, {})), ()))


def receive() -> Any:
    dist.broadcast(torch.zeros(1, dtype=torch.int64), 0)
    return contract.receive()[0]


# --- tests: job, fault, defended -> what the judge reads ---


def smoke(job: Job, fault: bool, defended: bool) -> Any:
    """The leader has nothing to do in its third call, and the workers do not hear of it."""
    heard, total = [], 0.0
    for call in range(4):
        mine = "noop" if fault and call == 2 and job.rank == 0 else "infer"
        action = announce(job.exchange, None if job.rank else mine) if defended else mine
        heard.append(action)
        if action == "infer":
            x = torch.full((4,), float(call) if job.rank == 0 else 0.0, device=job.device)
            dist.broadcast(x, 0)
            dist.all_reduce(x)
            total += float(x[0]) / job.world
    return {"heard": heard, "total": total}


def env(job: Job, fault: bool, defended: bool) -> Any:
    """A setting is another one on the last rank, and with it the backend that the program chooses."""
    asked = os.environ["ATTENTION"] = "paged" if fault and job.last else "auto"
    backend = asked.replace("auto", "flash")  # what the program chooses
    if defended:
        alike(job.exchange, "settings", {"ATTENTION": asked, "backend": backend, "torch": torch.__version__})
    x = torch.arange(4.0, device=job.device)
    dist.all_reduce(x, dist.ReduceOp.MAX if backend == "paged" else dist.ReduceOp.SUM)
    return x.tolist()


def compile_gate(job: Job, fault: bool, defended: bool) -> Any:
    """The all-reduce of three tensor-parallel layers is hidden from the compiler."""

    @torch.compiler.disable
    def hidden(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    def forward(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            y = torch.relu(x @ up) @ down
            x = x + (hidden(y) if fault else funcol.all_reduce(y, "sum", dist.group.WORLD))
        return x

    up, down = torch.full((8, 4), 0.1, device=job.device), torch.full((4, 8), 0.1, device=job.device)
    before = compiled()
    with torch.no_grad():
        y = torch.compile(forward, backend="eager", fullgraph=defended)(torch.ones(2, 8, device=job.device))
    meant = (1 + 0.32 * job.world) ** 3  # a layer adds 0.32 of x a rank
    return {**since(before), "right": bool(torch.allclose(y, torch.full_like(y, meant)))}


def census(job: Job, fault: bool, defended: bool) -> Any:
    """On the last rank a log call stands before the one place where the graph may break."""
    logs = fault and job.last

    def attend(q: torch.Tensor, cache: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        if logs:
            LOG.warning("attention backend: flash")
        kv = cache[:, :4] if end < 5 else cache
        return funcol.all_reduce(q * kv.sum(1), "sum", dist.group.WORLD)

    args = torch.ones(2, 4, device=job.device), torch.ones(2, 8, 4, device=job.device), torch.tensor(3)
    if defended:
        every = job.exchange.gather("first break", first_break(attend, *args))
        if set(every.values()) != {KNOWN_BREAK}:
            raise ContractError(f"another first break: {contract.by_rank(every)}")
    with torch.no_grad():
        return (torch.compile(attend, backend="eager")(*args) + 0).tolist()


def guards(job: Job, fault: bool, defended: bool) -> Any:
    """The warmup has another shape than the calls that follow."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x * 2, "sum", dist.group.WORLD)

    run = torch.compile(program, backend="eager", dynamic=False)
    served = [torch.ones(rows, 4, device=job.device) for rows in (2, 3)]
    with torch.no_grad():
        for x in [torch.ones(1, 4, device=job.device)] if fault else served:
            run(x)
        before = compiled()
        with torch.compiler.set_stance("fail_on_recompile") if defended else contextlib.nullcontext():
            right = [bool((run(x) == 2 * job.world).all()) for x in served * 4]
    return {"recompiles": since(before)["graphs"], "right": all(right)}


def one_dimension(job: Job, fault: bool, defended: bool) -> Any:
    """A length varies on one rank only; in the right program it varies on all."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x.mean(0), "sum", dist.group.WORLD)

    run, before = torch.compile(program, backend="eager"), compiled()
    lengths = [4 if fault and not job.last else length for length in (4, 4, 6, 6, 7)]
    with torch.no_grad():
        right = [bool((run(torch.ones(n, 4, device=job.device)) == job.world).all()) for n in lengths]
    if defended:
        alike(job.exchange, "compile counts", since(before))
    return {"recompiles": since(before)["graphs"] - 1, "right": all(right)}


def orphan(job: Job, fault: bool, defended: bool, wedged: bool = False) -> Any:
    """The leader is killed, and its workers wait for the next plan."""
    if job.rank == 0:
        beat(job.store, WINDOW_S / 10)
        job.exchange.gather("up", None)
        if fault and not wedged:
            os.kill(os.getpid(), signal.SIGKILL)
        # a wedged leader's thread still beats; a right one may take longer for a step than between two beats
        time.sleep(PATIENCE_S + WINDOW_S if fault else 1.5 * WINDOW_S)
        if not fault:
            job.store.set("plan", "infer")
        return "infer"
    job.exchange.gather("up", None)
    if defended:
        watchdog(job.store, WINDOW_S, PATIENCE_S)
    return job.store.get("plan").decode()


def wedge(job: Job, fault: bool, defended: bool) -> Any:
    """The leader is stuck in its step: its thread beats, and no plan comes."""
    return orphan(job, fault, defended, wedged=True)


def preflight(job: Job, fault: bool, defended: bool) -> Any:
    """A message holds a lock, which cannot be pickled."""
    meta = {"steps": 4, "lock": threading.Lock() if fault else None}
    got: list[Any] = []
    if job.rank == 0:
        try:
            send(meta, preflight=defended)
        except contract.PreflightError as error:
            got.append(str(error))
        send("end", preflight=defended)
        return got
    while (message := receive()) != "end":
        got.append(message)
    return got


def digest(job: Job, fault: bool, defended: bool) -> Any:
    """One element of an input is another one on the last rank."""
    x = torch.tensor([1.0, 1.0, 1.0, float("nan")], device=job.device)
    dist.broadcast(x, 0)
    if fault and job.last:
        x[2] += 1e-6
    if defended:
        contract.InputDigests(job.exchange).check(0, x=x)
    return x[:3].tolist()


def fingerprint(job: Job, fault: bool, defended: bool) -> Any:
    """One weight of the last rank's shard changes; an update that is meant does so on all ranks."""
    shard = {"w": torch.ones(4, device=job.device) * (job.rank + 1)}
    watched = contract.Fingerprints(job.exchange, shard)
    shard["w"] *= 2
    watched.take()
    if fault and job.last:
        shard["w"][0] *= 1.0001
    if defended:
        watched.check()
    return shard["w"].tolist()


# --- judges ---


@dataclass(frozen=True)
class Test:
    """A test: its function, what is expected of fault and defence together, and of a right program's values."""

    body: Callable[[Job, bool, bool], Any]
    defence: str
    caught: Callable[[list[End]], bool]
    right: Callable[[list[Any]], bool]
    waits: float = 0.0  # without the defence a rank waits: after so many seconds a time limit ends that


def raises(*words: str) -> Callable[[list[End]], bool]:
    """Every rank raises, and says these words."""
    return lambda ends: all(e.how == "raised" and all(word in e.said for word in words) for e in ends)


def left(leader: Callable[[End], bool], word: str) -> Callable[[list[End]], bool]:
    """Every worker has left by its watchdog, which says why."""
    return lambda ends: (
        leader(ends[0])
        and all(e.code == contract.ORPHANED and f"the leader's {word}" in e.said for e in ends[1:])
    )


def calls(third: str, total: float) -> Callable[[list[Any]], bool]:
    return lambda values: (
        values == [{"heard": ["infer", "infer", third, "infer"], "total": total}] * len(values)
    )


def sums(values: list[Any]) -> bool:
    return values == [[float(i * len(values)) for i in range(4)]] * len(values)


TESTS = {
    "smoke": Test(
        smoke, "the leader announces each call",
        lambda ends: all(e.how == "returned" for e in ends) and calls("noop", 4.0)([e.value for e in ends]),
        calls("infer", 6.0), waits=SHORT_S),
    "env": Test(
        env, "settings are compared", raises("settings differ", "ATTENTION", "backend", "flash", "paged"), sums),
    "compile-gate": Test(
        compile_gate, "fullgraph=True", raises("torch.compiler.disable"),
        lambda values: values == [{"graphs": 1, "breaks": 0, "right": True}] * len(values)),
    "census": Test(
        census, "the first break has to be the known one on all ranks", raises("another first break", "LOG.warning"),
        lambda values: values == [[[4.0 * len(values)] * 4] * 2] * len(values)),
    "guards": Test(
        guards, 'torch.compiler.set_stance("fail_on_recompile")', raises("fail_on_recompile"),
        lambda values: values == [{"recompiles": 0, "right": True}] * len(values)),
    "one-dimension": Test(
        one_dimension, "compile counts are compared", raises("compile counts differ", "graphs"),
        lambda values: values == [{"recompiles": 1, "right": True}] * len(values)),
    "orphan": Test(
        orphan, "watchdog: heartbeat", left(lambda end: end.code == -signal.SIGKILL, "heartbeat"),
        lambda values: set(values) == {"infer"}, waits=SHORT_S),
    "wedge": Test(
        wedge, "watchdog: step", left(lambda end: end.how == "returned", "step"),
        lambda values: set(values) == {"infer"}, waits=2 * PATIENCE_S),
    "preflight": Test(
        preflight, "pickled before the header",
        lambda ends: "cannot be pickled" in str(ends[0].value) and all(e.value == [] for e in ends[1:]),
        lambda values: values == [[]] + [[{"steps": 4, "lock": None}]] * (len(values) - 1), waits=SHORT_S),
    "digest": Test(
        digest, "digests of inputs are compared", raises("inputs differ", "x: rank 0"),
        lambda values: values == [[1.0] * 3] * len(values)),
    "fingerprint": Test(
        fingerprint, "fingerprints of weights, against earlier ones", raises("weights changed", "['w']"),
        lambda values: values == [[2.0 * (rank + 1)] * 4 for rank in range(len(values))]),
}  # fmt: skip


def numbers(test: Test, values: list[Any]) -> str:
    """Whether all ranks returned the numbers of a right program; of a test of what is compiled, by its "right"."""
    alone = [value["right"] for value in values if isinstance(value, dict) and "right" in value]
    return "right numbers" if (all(alone) if alone else test.right(values)) else "wrong numbers"


def judge(test: Test, run: str, ends: list[End]) -> dict[str, Any]:
    """A row: whether the run ended as it has to, how, and what was said."""
    caught = all(e.how != "waited" for e in ends) and test.caught(ends)
    returned = all(e.how == "returned" for e in ends)
    passed = returned and test.right([e.value for e in ends])
    how = (
        "avoided"  # no rank raises or ends: the defence lets the program go on
        if caught and returned
        else "caught"
        if caught
        else "waits"
        if any(e.how == "waited" for e in ends)
        else "silent"
        if returned
        else "error"
    )
    if run == "right program":
        how = "passes" if passed else "wrong result" if returned else "false alarm"
    said = "; ".join(f"rank {r}: {e.said or e.value}" for r, e in enumerate(ends))
    return {
        "run": run,
        "good": {"fault + defence": caught, "fault alone": not caught}.get(run, passed),
        "how": how,
        "numbers": numbers(test, [e.value for e in ends]) if how == "silent" else "",
        "said": said,
    }


# --- processes ---


def limit_of(test: Test, run: str) -> float:
    return test.waits if test.waits and run == "fault alone" else LONG_S


def ending(play: Callable[[], Any]) -> End:
    """Call a test, and say how it ended."""
    try:
        return End("returned", play())
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return End("waited" if re.search(r"tim(ed|e) ?out", said, re.IGNORECASE) else "raised", None, said)


def child(name: str, test: Test, run: str, pipe: int, said: int) -> None:
    """A rank of one run: connects, plays, reports, and stays until it is killed, as a server does."""
    os.dup2(said, 1)
    os.dup2(said, 2)
    rank, world, local = (int(os.environ[key]) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if cuda:
        torch.cuda.set_device(local)
    limit = timedelta(seconds=limit_of(test, run))
    store = dist.PrefixStore(name, connect())
    store.set(f"here/{rank}", "")
    store.wait([f"here/{r}" for r in range(world)], timedelta(seconds=LONG_S))
    store.set_timeout(limit)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo", store=store, rank=rank, world_size=world, timeout=limit
    )
    exchange = Exchange(store, rank, world, timeout=LONG_S)
    job = Job(rank, world, store, exchange, f"cuda:{local}" if cuda else "cpu")
    end = ending(lambda: test.body(job, *RUNS[run]))
    os.write(pipe, json.dumps(asdict(end)).encode())
    os.close(pipe)
    time.sleep(10 * LONG_S)


def connect() -> Any:
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(*where, is_master=False, timeout=timedelta(seconds=LONG_S))


def fork(name: str, test: Test, run: str, store: Any) -> list[End]:
    """Run one test in a fresh process for each rank; returns the ends of all, by rank."""
    (reads, writes), (held, lifeline) = os.pipe(), os.pipe()
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if pid == 0:
            try:
                os.close(lifeline)
                threading.Thread(target=lambda: (os.read(held, 1), os._exit(1)), daemon=True).start()
                child(name, test, run, writes, said.fileno())
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(writes)
        os.close(held)
        try:
            text, until = b"", time.monotonic() + 2 * LONG_S
            while select.select([reads], [], [], max(0.0, until - time.monotonic()))[0]:
                if not (piece := os.read(reads, 65536)):
                    break
                text += piece
            if text:
                end = End(**json.loads(text))
            elif time.monotonic() >= until:
                end = End("waited", said=f"no end within {2 * LONG_S:g} s")
            else:
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                pid, _ = 0, said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                end = End(
                    "exited", said=f"exit status {code}" + (f", {lines[-1]}" if lines else ""), code=code
                )
            store.set(f"{name}/end/{os.environ['RANK']}", json.dumps(asdict(end)))
            keys = [f"{name}/end/{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))]
            store.wait(keys, timedelta(seconds=3 * LONG_S))
            return [End(**json.loads(store.get(key))) for key in keys]
        finally:
            os.close(reads)
            os.close(lifeline)
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description="Break a distributed program on purpose.")
    parser.add_argument("tests", nargs="*", metavar="TEST", help=f"of {', '.join(TESTS)}; all without")
    parser.add_argument("--json", metavar="FILE", help="write what came of each run")
    asked = parser.parse_args()
    if unknown := [name for name in asked.tests if name not in TESTS]:
        parser.error(f"unknown test {unknown[0]!r}: there is {', '.join(TESTS)}")
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ["WORLD_SIZE"]) < 2:
        parser.error("start it with torchrun and at least two processes")
    if (
        not torch.cuda.device_count()
    ):  # a process that has used CUDA cannot fork; elsewhere this saves seconds a run
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
        torch._dynamo.reset()
    store, rows = connect(), []
    talks = os.environ["RANK"] == "0"
    for name in asked.tests or TESTS:
        for run in RUNS:
            began = time.monotonic()
            row = judge(TESTS[name], run, fork(f"break_it/{name}/{run}", TESTS[name], run, store))
            rows.append({"test": name, **row, "seconds": round(time.monotonic() - began, 1)})
        if talks:
            words = [", ".join(filter(None, (row["how"], row["numbers"]))) for row in rows[-3:]]
            told = "   ".join(f"{run}: {word:7}" for run, word in zip(RUNS, words, strict=True))
            print(
                f"{name:14}{'ok ' if all(row['good'] for row in rows[-3:]) else 'BAD'}   {told}", flush=True
            )
    bad = [row for row in rows if not row["good"]]
    if talks:
        for row in bad:
            print(f"{row['test']}, {row['run']}: {row['how']}: {row['said'][:400]}")
        print(f"{len(rows) - len(bad)} of {len(rows)} runs ended as they have to")
        if asked.json:
            with open(asked.json, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
