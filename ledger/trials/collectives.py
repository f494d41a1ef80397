"""Collectives in eager: in place and functional, what they return and when, their gradients, and their cost."""

from __future__ import annotations

import inspect
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store

from labkit.timing import Times, interleave
from ledger.bench import Bench
from ledger.graphs import code, first_line
from ledger.trial import CannotTell, NotThere, Seen, judge, part

C10D = torch.ops._c10d_functional


def name() -> str:
    return dist.group.WORLD.group_name


# --- what is written, and what is returned ---


def in_place(x, out):
    dist.all_reduce(x)
    dist.all_gather_into_tensor(out, x)
    return x


def functional(x, out):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def written(program) -> Seen:
    x, out = torch.full((2,), dist.get_rank() + 1.0), torch.zeros(4)
    where = x.data_ptr(), out.data_ptr()
    program(x, out)
    dist.barrier()
    same = (x.data_ptr(), out.data_ptr()) == where
    return {"input": x.tolist(), "out": out.tolist(), "same": same}


@judge(lambda bench: bench.run(written, in_place)[0], counter=lambda bench: bench.run(written, functional)[0])
def in_place_writes(seen):
    yield part(
        "its sum into its input",
        seen["input"] == [3, 3] and seen["same"],
        f"input {seen['input']}, 3 = 1 + 2",
    )
    yield part(
        "what it gathers into the tensor given for it", seen["out"] == [3, 3, 3, 3], f"output {seen['out']}"
    )


def handles(call) -> Seen:
    x = torch.ones(2)
    dist.barrier()
    time.sleep(0.3 * dist.get_rank())  # a late peer
    plain = call(x)
    value = x[0].item()
    handle = call(torch.ones(2), async_op=True)
    if hasattr(handle, "wait"):
        handle.wait()
    return {"plain": type(plain).__name__, "value": value, "handle": isinstance(handle, dist.Work)}


def no_handle(x, async_op=False):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


@judge(
    lambda bench: bench.run(handles, dist.all_reduce)[0],
    counter=lambda bench: bench.run(handles, no_handle)[0],
)
def work_handle(seen):
    yield part("a Work with async_op=True", seen["handle"], "a Work" if seen["handle"] else "no Work")
    done = seen["plain"] == "NoneType" and seen["value"] == 2
    yield part(
        "None without it, once the sum is there", done, f"without it {seen['plain']}, value {seen['value']:g}"
    )


FAMILY = {
    "all_reduce": lambda x: funcol.all_reduce(x, "sum", dist.group.WORLD),
    "all_gather_tensor": lambda x: funcol.all_gather_tensor(x, 0, dist.group.WORLD),
    "reduce_scatter_tensor": lambda x: funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD),
    "all_to_all_single": lambda x: funcol.all_to_all_single(x, None, None, dist.group.WORLD),
    "broadcast": lambda x: funcol.broadcast(x, 0, dist.group.WORLD),
}


def returned(family) -> Seen:
    left, own = [], []
    for which, call in family.items():
        x = torch.arange(4.0) + 10 * dist.get_rank()
        before = x.clone()
        y = call(x)
        y = getattr(y, "elem", y)
        dist.barrier()
        left += [which] * torch.equal(x, before)
        own += [which] * (y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr())
    return {"left": left, "own": own}


def all_ranks(bench: Bench, function, *arguments) -> Seen:
    """The values that are alike on both ranks: of lists what stands in both."""
    a, b = bench.run(function, *arguments)
    return {key: [one for one in a[key] if one in b[key]] for key in a}


PLAIN = {
    "all_reduce": lambda x: (dist.all_reduce(x), x)[1],
    "broadcast": lambda x: (dist.broadcast(x, 0), x)[1],
}


def family(bench: Bench) -> Seen:
    return {**all_ranks(bench, returned, FAMILY), "of": list(FAMILY)}


def plain_family(bench: Bench) -> Seen:
    return {**all_ranks(bench, returned, PLAIN), "of": list(PLAIN)}


@judge(family, counter=plain_family)
def functional_returns_new(seen):
    yield part(
        "leaves its input as it was", seen["left"] == seen["of"], f"input left by {', '.join(seen['left'])}"
    )
    yield part("memory of its own", seen["own"] == seen["of"], f"own memory: {', '.join(seen['own'])}")


def plain_all_reduce(x, group):
    dist.all_reduce(x, group=group)
    return x


def functional_all_reduce(x, group):
    return funcol.all_reduce(x, "sum", group)


def named(call) -> Seen:
    """The sums of a collective whose group is given in each of these ways."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    ways = {
        "ProcessGroup": dist.group.WORLD,
        "name": name(),
        "ranks": list(range(dist.get_world_size())),
        "DeviceMesh": mesh,
        "mesh and dimension": (mesh, 0),
    }
    right, errors = [], {}
    for way, group in ways.items():
        x = torch.full((2,), dist.get_rank() + 1.0)
        try:
            right += [way] * (call(x, group).tolist() == [3, 3])
        except Exception as error:
            errors[way] = first_line(error)
    return {"right": right, "errors": errors, "of": list(ways)}


@judge(
    lambda bench: bench.run(named, functional_all_reduce)[0],
    counter=lambda bench: bench.run(named, plain_all_reduce)[0],
)
def group_arguments(seen):
    yield part(
        "a ProcessGroup, its name, a list of ranks, a DeviceMesh or a pair of mesh and dimension",
        seen["right"] == seen["of"],
        f"the right sum by {', '.join(seen['right'])}",
    )


TENSOR_NAMES = {
    "all_gather_tensor": FAMILY["all_gather_tensor"],
    "reduce_scatter_tensor": FAMILY["reduce_scatter_tensor"],
}
IN_PLACE_NAMES = {
    "all_gather_into_tensor": lambda x: dist.all_gather_into_tensor(x.new_empty(8), x),
    "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(x.new_empty(2), x),
}
OTHER_NAMES = {"all_reduce": FAMILY["all_reduce"], "all_to_all_single": FAMILY["all_to_all_single"]}


def warned(family) -> Seen:
    said = {}
    for which, call in family.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(torch.ones(4))
        texts = [str(w.message) for w in caught if issubclass(w.category, FutureWarning)]
        said[which] = [text for text in texts if "is deprecated" in text]
    return {"said": said}


def deprecated(seen: Seen):
    said = {which: " ".join(texts) for which, texts in seen["said"].items()}
    yield part(
        "warn in eager that they are deprecated",
        all("is deprecated" in text for text in said.values()),
        "; ".join(f"{which} warns" if text else f"{which}: no warning" for which, text in said.items()),
    )
    new = [text.partition("Please use")[2].strip() for text in said.values()]
    yield part(
        "name all_gather_single and reduce_scatter_single",
        ["all_gather_single" in new[0], "reduce_scatter_single" in new[1]] == [True, True],
        f"named {', '.join(new)}" if any(new) else "",
    )


@judge(
    lambda bench: bench.run(warned, TENSOR_NAMES)[0],
    counter=lambda bench: bench.run(warned, OTHER_NAMES)[0],
)
def functional_names_deprecated(seen):
    yield from deprecated(seen)


@judge(
    lambda bench: bench.run(warned, IN_PLACE_NAMES)[0],
    counter=lambda bench: bench.run(warned, OTHER_NAMES)[0],
)
def in_place_names_deprecated(seen):
    yield from deprecated(seen)


# --- when the value is there ---


def early(call, wait) -> Seen:
    """Rank 1 joins only after rank 0 has looked at what the call returned."""
    x = torch.full((4,), dist.get_rank() + 1.0)
    store = dist.PrefixStore(f"early {call.__name__}", _get_default_store())
    dist.barrier()
    if dist.get_rank() == 1:
        store.get("looked")
        store.delete_key("looked")
    y = call(x)
    memory = y.elem if isinstance(y, funcol.AsyncCollectiveTensor) else y
    before = memory.clone()[0].item()
    kind = type(y).__name__
    if dist.get_rank() == 0:
        store.set("looked", "yes")
    waited = wait(y)
    after = memory.clone()[0].item()
    same = waited is y, getattr(waited, "elem", waited).data_ptr() == memory.data_ptr()
    return {"kind": kind, "before": before, "after": after, "used": (y + 0)[0].item(), "same": list(same)}


def wrapped(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def raw(x):
    return C10D.all_reduce(x, "sum", name())


def a_copy(x):
    return x.clone()


def use(y):
    return y + 0


def copied(y):
    return C10D.wait_tensor(y).clone()


def early_wrapped(bench: Bench) -> Seen:
    return bench.run(early, wrapped, use)[0]


def early_raw(bench: Bench) -> Seen:
    return bench.run(early, raw, C10D.wait_tensor)[0]


def early_copy(bench: Bench) -> Seen:
    return bench.run(early, a_copy, use)[0]


def early_copied(bench: Bench) -> Seen:
    return bench.run(early, raw, copied)[0]


@judge(early_wrapped, counter=early_copy)
def async_tensor(seen):
    yield part("an AsyncCollectiveTensor before a late peer has joined", seen["kind"] == "AsyncCollectiveTensor",
               f"a {seen['kind']}")  # fmt: skip
    yield part("using it waits", seen["used"] == 3, f"used, it is {seen['used']:g}, 3 = 1 + 2")


@judge(early_raw, counter=early_copy)
def memory_before_the_wait(seen):
    yield part(
        "does not hold the sum before the wait", seen["before"] != 3, f"before the wait {seen['before']:g}"
    )
    yield part("holds it after", seen["after"] == 3, f"after it {seen['after']:g}, 3 = 1 + 2")


@judge(early_raw, counter=early_copied)
def wait_returns_the_same(seen):
    yield part("the very tensor that it is given", all(seen["same"]),
               f"the same object: {seen['same'][0]}, the same memory: {seen['same'][1]}")  # fmt: skip


def ignored(wait) -> Seen:
    def program(x):
        y = C10D.all_reduce(x * 1, "sum", name())
        wait(y)
        return y + 0

    def late(call):
        dist.barrier()
        time.sleep(0.3 * dist.get_rank())
        value = call(torch.full((4,), dist.get_rank() + 1.0)).tolist()
        dist.barrier()
        return value

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        dist.barrier()
        compiled(torch.ones(4))  # compiles
        return {"eager": late(program), "compiled": late(compiled)}


def nothing(y):
    return None


@judge(
    lambda bench: bench.run(ignored, C10D.wait_tensor)[0],
    counter=lambda bench: bench.run(ignored, nothing)[0],
)
def ignored_wait(seen):
    yield part("in eager", seen["eager"] == [3] * 4, f"eager {seen['eager']}")
    yield part("compiled", seen["compiled"] == [3] * 4, f"compiled {seen['compiled']}")


# --- ranks by number ---


def sources(kind: str, how: dict, compiled: bool) -> Seen:
    """What each rank of the group of ranks 1 and 2 has after a broadcast of its own rank."""
    pair = dist.new_group([1, 2])
    if dist.get_rank() == 0:
        return {"said": "", "value": None}

    def program(x):
        if kind == "functional":
            return funcol.broadcast(x, group=pair, **how) + 0
        x = x * 1
        dist.broadcast(x, group=pair, **how)
        return x + 0

    torch._dynamo.reset()
    run = torch.compile(program, backend="aot_eager") if compiled else program
    value, said = None, ""
    try:
        with torch.no_grad():
            value = run(torch.full((1,), float(dist.get_rank()))).item()
    except ValueError as error:
        said = first_line(error).partition(" <")[0]
    return {"said": said, "value": value}


def numbered(bench: Bench, kind: str = "in place", **how) -> Seen:
    """Whose tensor rank 2 has, in eager and compiled, or the error."""
    if "group_src" not in inspect.signature(dist.broadcast).parameters:
        raise NotThere("dist.broadcast of this torch has no argument group_src")
    found = [bench.run(sources, kind, how, compiled, ranks=3)[2] for compiled in (False, True)]
    return {"values": [one["value"] for one in found], "said": [one["said"] for one in found]}


def by_both(bench: Bench) -> Seen:
    by_group, by_number = numbered(bench, group_src=0), numbered(bench, src=1)
    return {
        "group_src": by_group["values"],
        "src": by_number["values"],
        "refused": numbered(bench, src=0)["said"],
    }


def by_wrong(bench: Bench) -> Seen:
    by_group, by_number = numbered(bench, group_src=1), numbered(bench, src=2)
    return {
        "group_src": by_group["values"],
        "src": by_number["values"],
        "refused": by_number["said"],
    }


@judge(by_both, counter=by_wrong)
def group_src(seen):
    yield part(
        "both send rank 1's tensor, in eager and compiled",
        seen["group_src"] == seen["src"] == [1, 1],
        f"rank 2 has {seen['group_src']} by group_src and {seen['src']} by src",
    )
    yield part(
        "src=0 raises a ValueError",
        all("ValueError" in said for said in seen["refused"]),
        f"src=0: {seen['refused'][0] or 'no error'}",
    )


@judge(
    lambda bench: numbered(bench, "functional", src=1),
    counter=lambda bench: numbered(bench, src=1),
)
def functional_src(seen):
    eager, compiled = seen["values"]
    yield part("in eager", eager == 2, f"received from rank {eager or 0:g} in eager")
    yield part("compiled", compiled == 2, f"from rank {compiled or 0:g} compiled")


# --- gradients: each rank has a loss of its own, a row of W, and the job's loss is their sum ---

W = torch.tensor([[1.0, 5.0, 2.0, 7.0, 3.0, 1.0, 4.0, 6.0], [3.0, 0.0, 8.0, 1.0, 2.0, 5.0, 9.0, 2.0]])
X = torch.tensor([[1.0, 2.0, 5.0, 4.0], [3.0, 1.0, 2.0, 6.0]])


def alone(which: str, xs: torch.Tensor) -> list[torch.Tensor]:
    """What each rank would get, computed in one process."""
    a, b = xs
    if which == "all_gather_tensor":
        return [torch.cat([a, b])] * 2
    if which == "reduce_scatter_tensor":
        return list((a + b).chunk(2))
    if which == "all_to_all_single":
        return [torch.cat([a[:2], b[:2]]), torch.cat([a[2:], b[2:]])]
    if which == "broadcast":
        return [a, a]
    both = {"sum": a + b, "avg": (a + b) / 2, "max": torch.maximum(a, b), "product": a * b}[which]
    return [both, both]


def gradient(which: str, compiled: bool = False, in_place: bool = False) -> Seen:
    rank = dist.get_rank()
    call = FAMILY.get(which) or (lambda x: funcol.all_reduce(x, which, dist.group.WORLD))
    if in_place:
        call = PLAIN["all_reduce"]

    def loss(x):
        y = call(x * 1)
        return (W[rank][: len(y)] * y).sum()

    xs = X.clone().requires_grad_()
    sum((W[r][: len(y)] * y).sum() for r, y in enumerate(alone(which, xs))).backward()
    x = X[rank].clone().requires_grad_()
    torch._dynamo.reset()
    run = torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss
    said, value = "", None
    try:
        run(x).backward()
        value = None if x.grad is None else x.grad.tolist()
    except RuntimeError as error:
        said = first_line(error)
    dist.barrier()
    return {"grad": value, "right": xs.grad[rank].tolist(), "error": said}


def gradients(bench: Bench, *names: str, compiled: bool = False, in_place: bool = False) -> Seen:
    found = {which: list(bench.run(gradient, which, compiled, in_place)) for which in names}
    return {
        "right": [which for which, ranks in found.items() if all(r["grad"] == r["right"] for r in ranks)],
        "refused": [which for which, ranks in found.items() if all(r["error"] for r in ranks)],
        "wrong": {
            w: [r["grad"] for r in ranks] for w, ranks in found.items() if all(r["grad"] for r in ranks)
        },
        "should": {w: [r["right"] for r in ranks] for w, ranks in found.items()},
        "errors": sorted({r["error"] for ranks in found.values() for r in ranks} - {""}),
        "of": list(names),
    }


LINEAR = ("sum", "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single")


def of_linear(bench: Bench) -> Seen:
    eager, compiled = gradients(bench, *LINEAR), gradients(bench, *LINEAR, compiled=True)
    return {"eager": eager["right"], "compiled": compiled["right"], "of": list(LINEAR)}


def of_broadcast(bench: Bench) -> Seen:
    return gradients(bench, "broadcast")


def of_broadcast_twice(bench: Bench) -> Seen:
    eager, compiled = of_broadcast(bench), gradients(bench, "broadcast", compiled=True)
    return {"eager": eager["right"], "compiled": compiled["right"], "of": ["broadcast"]}


def of_average(bench: Bench) -> Seen:
    return gradients(bench, "avg")


def of_maximum(bench: Bench) -> Seen:
    return gradients(bench, "max")


def of_product(bench: Bench) -> Seen:
    return gradients(bench, "product")


def of_sum(bench: Bench) -> Seen:
    return gradients(bench, "sum")


def in_place_in_eager(bench: Bench) -> Seen:
    return gradients(bench, "sum", in_place=True)


def in_place_compiled(bench: Bench) -> Seen:
    return gradients(bench, "sum", in_place=True, compiled=True)


def said_of(seen: Seen) -> str:
    wrong = "; ".join(
        f"{which} {values}, {seen['should'][which]} is right" for which, values in seen["wrong"].items()
    )
    return "; ".join(seen["errors"]) or wrong


@judge(of_linear, counter=of_broadcast_twice)
def gradients_are_right(seen):
    yield part("in eager", seen["eager"] == seen["of"], f"right in eager: {', '.join(seen['eager'])}")
    yield part("compiled", seen["compiled"] == seen["of"], f"compiled: {', '.join(seen['compiled'])}")


@judge(of_average, counter=of_product)
def gradient_of_an_average(seen):
    yield part("is one process's", seen["right"] == seen["of"], said_of(seen))


@judge(of_maximum, counter=of_product)
def gradient_of_a_maximum(seen):
    yield part("is one process's", seen["right"] == seen["of"], said_of(seen))


@judge(of_product, counter=of_sum)
def no_gradient_of_a_product(seen):
    yield part("raises a RuntimeError", seen["refused"] == seen["of"], said_of(seen))


@judge(of_broadcast, counter=of_sum)
def gradient_of_a_broadcast(seen):
    values = seen["wrong"].get("broadcast") or seen["wrong"].get("sum")
    own = values == [W[0, :4].tolist(), W[1, :4].tolist()]
    yield part("the gradient of its own loss", own, said_of(seen))
    yield part("no error", not seen["refused"], "; ".join(seen["errors"]))


@judge(in_place_in_eager, counter=of_sum)
def in_place_gradient_in_eager(seen):
    own = seen["wrong"].get("sum") == [W[0, :4].tolist(), W[1, :4].tolist()]
    yield part("the gradient of its own loss", own, said_of(seen))
    yield part("no error", not seen["refused"], "; ".join(seen["errors"]))


@judge(in_place_compiled, counter=in_place_in_eager)
def in_place_gradient_compiled(seen):
    yield part("is one process's", seen["right"] == seen["of"], said_of(seen))


# --- what a functional collective costs ---


def calls_of(device_sum) -> Times:
    x = torch.zeros(16, 128)

    def repeated(call):
        def run():
            for _ in range(50):
                call(x)[0, 0].item()  # reading an element waits

        return run

    ways = {"tested": repeated(device_sum), "in place": repeated(summed)}
    return interleave(ways, rounds=40, warmup=3, barrier=dist.barrier)


def summed(x):
    dist.all_reduce(x)
    return x


def again(x):
    dist.all_reduce(x)
    return x


def slower(bench: Bench, call) -> Seen:
    times = Times.merge(dict(enumerate(bench.run(calls_of, call, backend="shm"))))
    told = times.compare("tested", "in place").to_dict()
    micros = (times.median / 50 * 1e6).to_dict()
    return {**{key: told[key] for key in ("ratio", "low", "high")}, "micros": micros}


def functional_cost(bench: Bench) -> Seen:
    return slower(bench, wrapped)


def in_place_cost(bench: Bench) -> Seen:
    return slower(bench, again)


@judge(functional_cost, counter=in_place_cost)
def eager_cost(seen):
    if seen["low"] <= 3 <= seen["high"]:
        raise CannotTell("a quieter machine")
    tested, plain = seen["micros"]["tested"], seen["micros"]["in place"]
    yield part(
        "more than three times as long",
        seen["low"] > 3,
        f"{seen['ratio']:.1f} times ({seen['low']:.1f} to {seen['high']:.1f}): {tested:.0f} and {plain:.0f} us a call",
    )


# --- in Inductor's code ---


def of_a_product(x):
    return funcol.all_reduce(x @ x, "sum", dist.group.WORLD) + 1


def of_a_product_that_is_kept(x):
    y = x @ x
    return funcol.all_reduce(y, "sum", dist.group.WORLD) + 1, y


def inductor(program) -> Seen:
    with torch.no_grad():
        text = code(program, torch.ones(8, 8))
    body = text[text.index("def call(") :]
    before, found, _ = body.partition("_c10d_functional.all_reduce_.default(")
    if not found or "empty_strided" not in body:
        raise ValueError("the reader finds no all_reduce_ or no buffer in Inductor's code")
    return {"buffers": before.count("= empty_strided"), "copies": before.count("copy")}


def reused(bench: Bench) -> Seen:
    return bench.run(inductor, of_a_product)[0]


def kept(bench: Bench) -> Seen:
    return bench.run(inductor, of_a_product_that_is_kept)[0]


@judge(reused, counter=kept)
def reinplaced(seen):
    yield part("in the product's own buffer", seen["buffers"] == 1,
               f"{seen['buffers']} buffers before all_reduce_, the product's included")  # fmt: skip
