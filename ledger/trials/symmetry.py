"""Ranks that differ: which differences hang, which give other numbers without an error, and what finds them."""

from __future__ import annotations

import contextlib
import io
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._inductor import config as inductor

from labkit.ranks import RankError, Ranks
from labkit.ranks.output import quietly
from ledger.bench import Bench
from ledger.graphs import Graphs, first_line
from ledger.trial import NotThere, Seen, judge, part

WAIT_S = 2  # how long a collective of a drill waits for its peer
TIMED_OUT = "timed out"


def all_gather(x, group):
    single = hasattr(funcol, "all_gather_single")  # its name from torch 2.14 on
    return (funcol.all_gather_single if single else funcol.all_gather_tensor)(x, 0, group)


@contextlib.contextmanager
def short_group(members=None, detail: bool = False, wait_s: float = WAIT_S):
    """A group of its own for a drill: its collectives give up soon, and the ranks can go on with the default group."""
    level = dist.get_debug_level()
    if detail:
        dist.set_debug_level(dist.DebugLevel.DETAIL)  # as TORCH_DISTRIBUTED_DEBUG=DETAIL does
    try:
        group = dist.new_group(members, timeout=timedelta(seconds=wait_s))
    finally:
        dist.set_debug_level(level)
    dist.barrier()
    if dist.get_rank() in (members or range(dist.get_world_size())):
        dist.all_reduce(torch.ones(1), group=group)  # connect its ranks
    dist.barrier()
    yield group


def outcome(program, *arguments) -> Seen:
    """What a program gave on this rank, or how it ended."""
    try:
        return {"gave": program(*arguments), "ended": ""}
    except RuntimeError as error:
        said = str(error)
        # a rank whose peer has timed out and closed its connections may see that before its own timeout
        late = "imed out" in said or "Connection closed by peer" in said
        return {"gave": None, "ended": TIMED_OUT if late else first_line(error), "said": said[:600]}


def described(seen: Seen) -> str:
    return "; ".join(f"rank {rank}: {one['ended'] or one['gave']}" for rank, one in enumerate(seen["ranks"]))


# --- compiled functions in which one rank calls one collective more ---


def reduced(x, group):
    return funcol.all_reduce(x, "sum", group)


def two_calls(what: str, odd: bool, group):
    """Two calls of a compiled function, both ranks alike in the first; in the second the odd one goes its own way."""

    def by_size(x, flag):
        y = reduced(x.sum(), group)
        return reduced(y * 2, group) if x.shape[0] > 4 else y

    def by_flag(x, flag):
        y = reduced(x.sum(), group)
        return reduced(y * 2, group) if flag else y

    def by_data(x, flag):
        y = reduced(x.sum(), group)
        return reduced(y * 2, group) if x[0] > 1 else y

    def by_rank(x, flag):
        y = reduced(x.sum(), group)
        return reduced(y * 2, group) if flag and dist.get_rank(group) == dist.get_world_size(group) - 1 else y

    program = {"size": by_size, "flag": by_flag, "data": by_data, "rank": by_rank}[what]
    torch._dynamo.reset()
    run = torch.compile(program, backend="eager", fullgraph=what != "data")
    x = torch.ones(4)
    if odd and what == "size":
        x = torch.ones(5)
    if odd and what == "data":
        x = torch.full((4,), 2.0)
    with torch.no_grad():
        first = run(torch.ones(4), False) + 0
        return [first.item(), (run(x, odd and what in ("flag", "rank")) + 0).item()]


CAUSES = ("size", "flag", "data")


def diverge(what: str, who: str) -> Seen:
    rank = dist.get_rank()
    odd = who == "both" or (who == "one" and rank == 1)
    with short_group() as group:
        return outcome(two_calls, what, odd, group)


def alone(what: str, odd: bool) -> Seen:
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return outcome(two_calls, what, odd, groups[dist.get_rank()])


def diverging(who: str):
    def probe(bench: Bench) -> Seen:
        return {what: {"ranks": list(bench.run(diverge, what, who))} for what in CAUSES}

    return probe


def waits(seen: Seen) -> tuple[bool, str]:
    """Whether rank 1 waited in vain for a peer that had finished."""
    zero, one = seen["ranks"]
    return one["ended"] == TIMED_OUT and not zero["ended"], described(seen)


@judge(diverging("one"), counter=diverging("both"))
def one_collective_more_hangs(seen):
    for what, words in (("size", "a size"), ("flag", "a flag"), ("data", "the data")):
        holds, said = waits(seen[what])
        yield part(words, holds, f"{what}: {said}")


def one_and_two(who: str):
    def probe(bench: Bench) -> Seen:
        return {
            "alone": [list(bench.run(alone, "flag", odd, ranks=1))[0] for odd in (False, True)],
            "ranks": list(bench.run(diverge, "flag", who)),
        }

    return probe


@judge(one_and_two("one"), counter=one_and_two("both"))
def one_rank_does_not_show(seen):
    gave = [one["gave"] for one in seen["alone"]]
    holds, said = waits(seen)
    said = f"one rank: {gave}; two: {said}"
    yield part("is right in a job of one rank with either flag", gave == [[4.0, 4.0], [4.0, 8.0]], said)
    yield part("times out in a job of two ranks with different flags", holds, said)


def guarded(together: bool) -> Seen:
    """Rank 1 has another size in the second call; both ranks call one collective each time."""
    torch._dynamo.reset()
    backend = Graphs()
    torch.compiler.set_enable_guard_collectives(together)
    try:
        run = torch.compile(lambda x: reduced(x.sum(0), dist.group.WORLD), backend=backend)
        with torch.no_grad():
            _ = run(torch.ones(2, 3)) + 0
            dist.barrier()
            y = run(torch.ones(2 + dist.get_rank(), 3)) + 0
    finally:
        torch.compiler.set_enable_guard_collectives(False)
    return {"value": y[0].item(), "graphs": len(backend.dynamo)}


def guards(together: bool):
    return lambda bench: {"ranks": list(bench.run(guarded, together))}


@judge(guards(True), counter=guards(False))
def guard_collectives(seen):
    graphs, values = ([one[name] for one in seen["ranks"]] for name in ("graphs", "value"))
    yield part("makes both ranks compile again", graphs == [2, 2], f"graphs by rank {graphs}")
    yield part("with the right sum", values == [5, 5], f"sums {values}, right is 5")


# --- the same number of collectives, but others ---


def differ(what: str, odd: bool, group):
    """One or two collectives; the odd rank calls others, or brings another tensor."""
    if what == "order of kinds":
        x, out = torch.ones(2), torch.zeros(4)
        todo = [
            lambda: dist.all_reduce(x, group=group),
            lambda: dist.all_gather_into_tensor(out, torch.ones(2), group=group),
        ]
        for call in reversed(todo) if odd else todo:
            call()
        return [x.tolist(), out.tolist()]
    if what == "order in a graph":

        def program(x):
            if odd:
                g = all_gather(x, group).sum()
                return g + reduced(x, group).sum()
            r = reduced(x, group).sum()
            return r + all_gather(x, group).sum()

        torch._dynamo.reset()
        with torch.no_grad():
            return (torch.compile(program, backend="eager", fullgraph=True)(torch.ones(4)) + 0).item()
    if what == "order of tensors":
        q, k = torch.ones(4), torch.full((4,), 10.0)
        for x in (k, q) if odd else (q, k):
            dist.all_reduce(x, group=group)
        return [q.tolist(), k.tolist()]
    if what == "op":
        x = torch.arange(4.0) + 1
        dist.all_reduce(x, dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM, group=group)
    if what == "dtype":
        x = torch.ones(4, dtype=torch.int32 if odd else torch.float32)
        dist.all_reduce(x, group=group)
    if what == "shape":
        x = torch.arange(6.0).reshape(2, 3)
        x = x.t().contiguous() if odd else x
        dist.all_reduce(x, group=group)
    if what == "size":
        x = torch.ones(6 if odd else 4)
        dist.all_reduce(x, group=group)
    return x.tolist()


def differing_rank(what: str, who: str, detail: bool) -> Seen:
    odd = who == "one" and dist.get_rank() == 1
    with short_group(detail=detail) as group:
        return outcome(differ, what, odd, group)


def differing(*drills: str, who: str = "one", detail: bool = False):
    def probe(bench: Bench) -> Seen:
        return {what: {"ranks": list(bench.run(differing_rank, what, who, detail))} for what in drills}

    return probe


ORDERS = ("order of kinds", "order in a graph")
EQUAL_BYTES = ("dtype", "shape")
MISMATCHES = ("order of kinds", "dtype", "shape", "size")
SILENT = ("order of tensors", "op")


@judge(differing(*ORDERS), counter=differing(*ORDERS, who="none"))
def opposite_order_hangs(seen):
    for what, words in zip(
        ORDERS, ("in eager", "as functional collectives in a compiled function"), strict=True
    ):
        both = [one["ended"] for one in seen[what]["ranks"]] == [TIMED_OUT] * 2
        yield part(words, both, f"{what}: {described(seen[what])}")


@judge(differing("order of tensors"), counter=differing("order of tensors", who="none"))
def swapped_tensors_mix(seen):
    ranks = seen["order of tensors"]["ranks"]
    said = described(seen["order of tensors"])
    yield part("without an error", not any(one["ended"] for one in ranks), said)
    mixed = all(one["gave"] == [[11.0] * 4] * 2 for one in ranks)
    yield part("each sum adds one rank's first tensor to the other's second", mixed, said)


@judge(differing("op"), counter=differing("op", who="none"))
def other_operation_is_silent(seen):
    ranks, said = seen["op"]["ranks"], described(seen["op"])
    yield part("ends without an error", not any(one["ended"] for one in ranks), said)
    neither = all(one["gave"] not in ([2.0, 4.0, 6.0, 8.0], [1.0, 2.0, 3.0, 4.0]) for one in ranks)
    yield part("neither the sum nor the maximum", neither, said)


@judge(differing(*EQUAL_BYTES), counter=differing(*EQUAL_BYTES, who="none"))
def other_metadata_is_silent(seen):
    right = {"dtype": [2.0] * 4, "shape": [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]}
    names = {"dtype": "float32 and int32", "shape": "2 x 3 and 3 x 2"}
    for what in EQUAL_BYTES:
        ranks, said = seen[what]["ranks"], f"{what}: {described(seen[what])}"
        yield part("without an error", not any(one["ended"] for one in ranks), said)
        yield part(names[what], ranks[0]["gave"] != right[what], said)


def other_size(sizes: tuple[int, int], detail: bool = False):
    """Ranks of their own: what gloo does may end a process."""

    def probe(bench: Bench) -> Seen:
        with Ranks(2, "cpu", "gloo", timeout=60, stall=5, quiet=True) as ranks:
            try:
                found = list(ranks.run(quietly, of_size, sizes).values())
            except RankError as raised:
                found = [""] * 2
                for one in raised.outcomes:
                    found[one.rank] = (
                        f"{one.kind} {one.type} {one.message}".strip() if one.kind != "ok" else ""
                    )
            return {"ranks": found, "more": int(sizes[1] > sizes[0])}

    return probe


def of_size(sizes) -> str:
    with short_group() as group:
        found = outcome(lambda: dist.all_reduce(torch.ones(sizes[dist.get_rank()]), group=group))
        return found["ended"]


@judge(other_size((4, 6)), counter=other_size((6, 6)))
def other_size_aborts(seen):
    less, more = seen["ranks"][1 - seen["more"]], seen["ranks"][seen["more"]]
    said = f"the rank with fewer elements: {less or 'no error'}; the one with more: {more or 'no error'}"
    yield part("aborts the process of the rank with fewer elements", "SIGABRT" in less, said)


def mismatch(one: Seen) -> bool:
    return "Detected mismatch between collectives" in one.get("said", "")


@judge(differing(*MISMATCHES, detail=True), counter=differing(*MISMATCHES, who="none", detail=True))
def detail_names_the_mismatch(seen):
    names = {"order of kinds": "another collective", "dtype": "dtype", "shape": "shape", "size": "shape"}
    for what in MISMATCHES:
        caught = all(mismatch(one) for one in seen[what]["ranks"])
        yield part(names[what], caught, f"{what}: {described(seen[what])}")


def lets_pass(bench: Bench) -> Seen:
    """The same reading of two differences that DETAIL sees."""
    seen = differing("dtype", "shape", "size", detail=True)(bench)
    return {"order of tensors": seen["shape"], "op": seen["dtype"], "size": seen["size"]}


@judge(differing(*SILENT, "size", detail=True), counter=lets_pass)
def detail_lets_pass(seen):
    if not all(mismatch(one) for one in seen["size"]["ranks"]):
        raise ValueError("DETAIL does not see another size: it is not on")
    for what, words in (
        ("op", "another ReduceOp"),
        ("order of tensors", "tensors of one shape in another order"),
    ):
        passed = not any(one["ended"] for one in seen[what]["ranks"])
        yield part(words, passed, f"{what}: {described(seen[what])}")


# --- a rank that comes late, and one that does not come ---


def late_rank(wait_s: float, sleeps_s: float) -> Seen:
    with short_group(wait_s=wait_s) as group:
        if dist.get_rank() == 1:
            time.sleep(sleeps_s)
        return outcome(lambda: summed(group))


def summed(group) -> float:
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    return x.item()


def late(wait_s: float, sleeps_s: float):
    return lambda bench: {"ranks": list(bench.run(late_rank, wait_s, sleeps_s))}


@judge(late(1, 2.5), counter=late(30, 2.5))
def late_is_a_timeout(seen):
    zero = seen["ranks"][0]
    yield part("raises at the group's timeout", zero["ended"] == TIMED_OUT, described(seen))


def monitored(comes: bool) -> Seen:
    group = dist.new_group(timeout=timedelta(seconds=30))
    dist.barrier()
    if dist.get_rank() == 1 and not comes:
        return {"said": ""}
    try:
        dist.monitored_barrier(group, timeout=timedelta(seconds=1), wait_all_ranks=True)
    except RuntimeError as error:
        return {"said": str(error)[:300]}
    return {"said": ""}


def missing(comes: bool):
    return lambda bench: {"rank_zero": bench.run(monitored, comes)[0]["said"]}


@judge(missing(False), counter=missing(True))
def monitored_barrier_names_the_rank(seen):
    said = seen["rank_zero"] or "no error"
    yield part("names the rank that has not come", "Ranks 1 failed to pass monitoredBarrier" in said, said)


# --- who is in which group ---

CALLS = {
    "all_reduce": lambda x, group: dist.all_reduce(x, group=group),
    "broadcast": lambda x, group: dist.broadcast(x, 1, group=group),
    "barrier": lambda x, group: dist.barrier(group=group),
    "functional": lambda x, group: funcol.all_reduce(x, "sum", group) + 0,
}


def outsider_rank(name: str, members: tuple[int, ...]) -> Seen:
    """All three ranks call a collective on a group of some of them."""
    with short_group(list(members)) as group:
        x = torch.full((2,), float(dist.get_rank()))
        began = time.perf_counter()
        try:
            y = CALLS[name](x, group)
        except Exception as error:
            return {"ended": first_line(error), "changed": False, "values": [], "seconds": 0.0}
        y = y if isinstance(y, torch.Tensor) else x
        changed = y.tolist() != [dist.get_rank()] * 2
        took = round(time.perf_counter() - began, 2)
        return {"ended": "", "changed": changed, "values": y.tolist(), "seconds": took}


def outsider(members: tuple[int, ...], *names: str):
    def probe(bench: Bench) -> Seen:
        return {name: list(bench.run(outsider_rank, name, members, ranks=3)) for name in names}

    return probe


def zero(seen: Seen) -> str:
    return "; ".join(
        f"{name} on rank 0: {one['ended'] or ('changed' if one['changed'] else 'returns, unchanged')}"
        for name, (one, *_) in seen.items()
    )


@judge(outsider((1, 2), "all_reduce", "broadcast"), counter=outsider((0, 1, 2), "all_reduce", "broadcast"))
def outsider_is_ignored(seen):
    gives = {"all_reduce": [3, 3], "broadcast": [1, 1]}  # of the group, ranks 1 and 2
    for name in gives:
        first = seen[name][0]
        fine = not first["ended"] and not first["changed"]
        yield part(f"dist.{name}", fine, zero({name: seen[name]}))
    took = [seen[name][0]["seconds"] for name in gives]
    yield part("within a second", max(took) < 1, f"{max(took)} s")
    others = {name: [one["values"] for one in seen[name][1:]] for name in gives}
    right = all(others[name] == [value, value] for name, value in gives.items())
    yield part("get the right values", right, f"ranks 1 and 2: {others}")


@judge(outsider((1, 2), "functional"), counter=outsider((0, 1, 2), "functional"))
def functional_outsider_raises(seen):
    yield part("raises an error", seen["functional"][0]["ended"], zero(seen))


def member_rank(members: tuple[int, ...]) -> Seen:
    """Ranks 1 and 2 reduce in a group of these members; rank 0 does not call."""
    with short_group(list(members)) as group:
        return outcome(summed, group) if dist.get_rank() else {"gave": 0, "ended": ""}


def member(*members: int):
    return lambda bench: {"ranks": list(bench.run(member_rank, members, ranks=3))}


@judge(member(0, 1, 2), counter=member(1, 2))
def a_member_too_many_hangs(seen):
    ended = [one["ended"] for one in seen["ranks"]][1:]
    yield part("time out", ended == [TIMED_OUT] * 2, described(seen))


def beside_rank(all_call: bool) -> Seen:
    """Rank 0 gives the input over the world and compiles nothing; ranks 1 and 2 compile and reduce."""
    rank, backend = dist.get_rank(), Graphs()
    with short_group([0, 1, 2] if all_call else [1, 2]) as group, torch.no_grad():
        run = torch.compile(lambda x: reduced(x * 2, group), backend=backend, fullgraph=True)
        values = []
        for i in range(2):
            x = torch.full((2,), i + 1.0) if not rank else torch.zeros(2)
            dist.broadcast(x, 0)
            values.append((run(x) + 0)[0].item() if rank or all_call else x[0].item())
    return {"graphs": len(backend.dynamo), "values": values}


def beside(all_call: bool):
    return lambda bench: {"ranks": list(bench.run(beside_rank, all_call, ranks=3))}


@judge(beside(False), counter=beside(True))
def outside_compiles_nothing(seen):
    graphs, values = ([one[name] for one in seen["ranks"]] for name in ("graphs", "values"))
    yield part("compiles no graph", graphs == [0, 1, 1], f"graphs by rank {graphs}")
    yield part("the group's sums are right", values[1:] == [[4.0, 8.0]] * 2, f"values by rank {values}")


# --- a graph break on one rank, where Inductor puts collectives into buckets ---


SPMD = "aten_distributed_optimizations"
HAS_SPMD_CHECK = hasattr(inductor.aten_distributed_optimizations, "spmd_check")


def bucketed_rank(breaks: str, check: bool = False) -> list[float]:
    odd = breaks == "both" or (breaks == "one" and dist.get_rank() == 1)

    def program(a, b, c):
        x = all_gather(a, dist.group.WORLD)
        s = funcol.reduce_scatter_tensor(c, "sum", 0, dist.group.WORLD)
        if odd:
            torch._dynamo.graph_break()
        return x, s, all_gather(b, dist.group.WORLD)

    torch._dynamo.reset()
    rank = dist.get_rank()
    a, b, c = (torch.full((size,), rank + start) for size, start in ((16, 1.0), (16, 3.0), (8, 1.0)))
    settings = {"bucket_all_gathers_fx": "all", "reorder_for_compute_comm_overlap": True}
    if HAS_SPMD_CHECK:  # on by default in torch 2.12
        settings |= {f"{SPMD}.spmd_check": check, f"{SPMD}.spmd_mismatch": "error"}
    with torch.no_grad(), inductor.patch(settings):
        return [y.sum().item() for y in torch.compile(program)(a, b, c)]


GATHERED = [16 * (1 + 2), 4 * (1 + 2), 16 * (3 + 4)]  # the sums of what both ranks bring


def bucketed(breaks: str):
    """Ranks of their own: gloo ends the process of a rank that is sent more than it expects."""

    def probe(bench: Bench) -> Seen:
        with Ranks(2, "cpu", "gloo", timeout=120, quiet=True) as ranks:
            try:
                found = list(ranks.run(quietly, bucketed_rank, breaks, stall=2.0).values())
                return {"right": found == [GATHERED] * 2, "waits": [], "said": str(found)}
            except RankError as raised:
                waits = {one.rank: one.waits for one in raised.outcomes if one.waits}
                if len(waits) < 2:  # another end than two ranks that wait
                    raise
                return {"right": False, "waits": [waits[0], waits[1]], "said": ""}

    return probe


@judge(bucketed("one"), counter=bucketed("both"))
def break_with_buckets_hangs(seen):
    first, second = seen["waits"] or (None, None)
    said = f"rank 0 waits in {first}, rank 1 in {second}" if first else f"gave {seen['said']}"
    yield part("waiting for each other in different collectives", first != second, said)


def checked_rank(breaks: str) -> Seen:
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the report is printed too
            return {"raised": "", "right": bucketed_rank(breaks, True) == GATHERED}
    except Exception as error:
        return {"raised": str(error)[:600], "right": False}


def checked(breaks: str):
    def probe(bench: Bench) -> Seen:
        if not HAS_SPMD_CHECK:
            raise NotThere(f"torch._inductor.config.{SPMD}.spmd_check is not in this torch")
        with Ranks(2, "cpu", "gloo", timeout=120, quiet=True, stall=20) as ranks:
            return {"ranks": list(ranks.run(quietly, checked_rank, breaks).values())}

    return probe


@judge(checked("one"), counter=checked("both"))
def spmd_check_raises(seen):
    said = "; ".join(one["raised"][:160] or f"right: {one['right']}" for one in seen["ranks"])
    raised = all("SPMD" in one["raised"] for one in seen["ranks"])
    yield part("raises an error on both ranks", raised, said)
