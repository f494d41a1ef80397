"""Communication beside computation: the order of Inductor's code, CUDA streams and events, NCCL's stream."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import time
import uuid
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.utils._runtime_estimation
from oddrank.record.profile import Profile
from torch._inductor import config
from torch._inductor.fx_passes import overlap_scheduling as overlap_passes
from torch._inductor.utils import run_and_get_code
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from labkit.ranks import here
from ledger.bench import Bench, thread_names
from ledger.graphs import Graphs, calls
from ledger.trial import CannotTell, NotThere, Seen, judge, part

CALLS = re.compile(
    r"\b(all_gather_into_tensor|all_reduce|wait_tensor|extern_kernels\.mm)\w*(?=\.default\(|\()"
)
SHORT = {"all_gather_into_tensor": "gather", "wait_tensor": "wait", "extern_kernels.mm": "mm"}
SIMPLE_OVERLAP = "aten_distributed_optimizations.enable_simple_overlap"


def coded(program, *arguments, training: bool = False, **settings) -> tuple:
    """What a compiled program returns, and Inductor's code for it (of a training step: for the forward)."""
    torch._dynamo.reset()
    with torch.set_grad_enabled(training), config.patch({"fx_graph_cache": False, **settings}):
        result, texts = run_and_get_code(torch.compile(program), *arguments)
    return result, "\n".join(text[text.index("def call(") :] for text in texts)


def ordered(program, *arguments, counts: dict[str, int], **settings) -> list[str]:
    """The collectives, waits and matrix products in Inductor's code; a ValueError where they are not all found."""
    names = [SHORT.get(name, name) for name in CALLS.findall(coded(program, *arguments, **settings)[1])]
    for name, count in counts.items():
        if names.count(name) != count:
            raise ValueError(
                f"the reader finds {names.count(name)} of {count} {name} in Inductor's code: {names}"
            )
    return names


def reduced(g):
    return funcol.all_reduce(g @ g, "sum", dist.group.WORLD)


def thrice(a):
    x = a
    for _ in range(3):
        x = torch.mm(x, a)
    return x


def returned(g, a):
    y = reduced(g)
    return y, thrice(a)


def used(g, a):
    y = reduced(g)
    return thrice(a) @ y


def used_as_a_view(g, a):
    y = reduced(g).view(-1, 32)
    return thrice(a) @ y.view(64, 64)


def added(g, a):
    y = reduced(g)
    return torch.addmm(y, thrice(a), a)


def needed(g, a):
    return thrice(reduced(g)) @ a


PRODUCTS = {returned: 4, used: 5, used_as_a_view: 5, added: 4, needed: 5}
FORMS = ["returned", "used", "used_as_a_view", "added"]


def orders(names: list[str], training: bool, settings: dict) -> Seen:
    if SIMPLE_OVERLAP in settings and not hasattr(
        config.aten_distributed_optimizations, "enable_simple_overlap"
    ):
        settings = {name: value for name, value in settings.items() if name != SIMPLE_OVERLAP}
    found = {}
    for program, products in PRODUCTS.items():
        if program.__name__ in names:
            g = torch.ones(64, 64, requires_grad=training)
            counts = {"all_reduce": 1, "wait": 1, "mm": products}
            found[program.__name__] = ordered(
                program, g, torch.eye(64), counts=counts, training=training, **settings
            )
    return {"orders": found}


def forms(names: list[str], training: bool = True, **settings):
    def probe(bench: Bench) -> Seen:
        return bench.run(orders, names, training, settings)[0]

    return probe


def between(names: list[str]) -> int:
    """How many matrix products stand between the all_reduce and its wait."""
    start = names.index("all_reduce")
    return names[start : names.index("wait", start)].count("mm")


def products(seen: Seen) -> tuple[list[int], str]:
    found = {name: between(names) for name, names in seen["orders"].items()}
    return list(found.values()), "; ".join(" ".join(names) for names in seen["orders"].values())


@judge(forms(FORMS), counter=forms(["needed"]))
def products_before_the_wait(seen):
    counts, said = products(seen)
    yield part("between a functional all_reduce and its wait", all(counts), said)


def simple_overlap(value: bool):
    def probe(bench: Bench) -> Seen:
        if not hasattr(config.aten_distributed_optimizations, "enable_simple_overlap"):
            raise NotThere(f"torch._inductor.config.{SIMPLE_OVERLAP} is not in this torch")
        return bench.run(orders, FORMS, True, {SIMPLE_OVERLAP: value})[0]

    return probe


@judge(simple_overlap(False), counter=simple_overlap(True))
def simple_overlap_off(seen):
    counts, said = products(seen)
    yield part("without a matrix product between them", not any(counts), said)


LOCAL = ["used", "used_as_a_view"]
ON = {SIMPLE_OVERLAP: False}
OFF = {SIMPLE_OVERLAP: False, "reorder_for_locality": False}


@judge(forms(LOCAL, False, **ON), counter=forms(LOCAL, False, **OFF))
def reorder_for_locality(seen):
    counts, said = products(seen)
    yield part("past independent matrix products", all(counts), said)


# --- when work starts while a peer is late ---

LATE_S = 0.2
STARTED: list[float] = []


@torch.library.custom_op("ledger::work", mutates_args=())
def work(x: torch.Tensor) -> torch.Tensor:
    STARTED.append(time.perf_counter())
    return x + 1


work.register_fake(torch.empty_like)


def functional(g, a):
    y = reduced(g)
    return y, work(a)


def functional_used(g, a):
    y = reduced(g)
    x = work(a)
    return y, x @ y


def functional_needed(g, a):
    y = reduced(g)
    return y, work(y.detach())


def asynchronous(g, a):
    y = g @ g
    pending = dist.all_reduce(y, async_op=True)
    x = work(a)
    pending.wait()
    return y, x


def waited_first(g, a):
    y = g @ g
    pending = dist.all_reduce(y, async_op=True)
    pending.wait()
    return y, work(a)


def beside_a_late_peer(names: list[str], training: bool) -> Seen:
    programs = [functional, functional_used, functional_needed, asynchronous, waited_first]
    starts, size = {}, 32
    g, a = torch.ones(size, size, requires_grad=training), torch.eye(size)
    for program in programs:
        if program.__name__ not in names:
            continue
        torch._dynamo.reset()
        compiled, starts[program.__name__] = torch.compile(program), []
        with torch.set_grad_enabled(training), config.patch(fx_graph_cache=False):
            compiled(g, a)
            for _ in range(3):
                dist.barrier()
                called = time.perf_counter()
                if dist.get_rank():
                    time.sleep(LATE_S)
                y, _ = compiled(g, a)
                if not (y == size * dist.get_world_size()).all():
                    raise ValueError(f"the sum is wrong: {y[0, 0]}")
                starts[program.__name__].append(STARTED[-1] - called)
    return {"starts_s": starts}


def late(*names: str, training: bool = False):
    def probe(bench: Bench) -> Seen:
        return bench.run(beside_a_late_peer, list(names), training)[0]

    return probe


def started_early(seen: Seen) -> tuple[bool, str]:
    starts = [min(times) for times in seen["starts_s"].values()]
    said = ", ".join(f"{first:.2f} s" for first in starts)
    return max(starts) < LATE_S / 2, f"a peer is {LATE_S:g} s late; the operator starts after {said}"


@judge(late("functional", "functional_used", training=True), counter=late("functional_needed", training=True))
def compiled_work_before_a_late_peer(seen):
    yield part("starts before a late peer has joined", *started_early(seen))


@judge(late("asynchronous"), counter=late("waited_first"))
def async_op_before_a_late_peer(seen):
    yield part("starts before a late peer has joined", *started_early(seen))


# --- streams in graphs ---


def plain(x, stream):
    return funcol.all_reduce(x + 1, "sum", dist.group.WORLD) * 2


def with_an_event(x, stream):
    event = torch.Event()
    event.record(stream)
    y = funcol.all_reduce(x + 1, "sum", dist.group.WORLD)
    event.wait(stream)
    return y * 2


def stream_nodes(program) -> list[str]:
    stream = torch.Stream(stream_id=3, device_index=0, device_type=1)
    backend = Graphs(aot=True)
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # without a GPU the event's operators cannot run
        torch.compile(program, backend=backend)(torch.ones(4), stream)
    (graph,) = backend.forward
    if not any("all_reduce" in name for name in calls(graph)):
        raise ValueError(f"no all_reduce in the graph: {calls(graph)}")
    found = [name for name in calls(graph) if name.startswith("streams.")]
    return found + ["stream" for node in graph.graph.nodes if "stream" in (node.meta.get("custom") or {})]


def graph_streams(names: list[str]) -> Seen:
    programs = {"plain": plain, "with an event": with_an_event}
    found = [name for way in names for name in stream_nodes(programs[way])]
    return {"operators": found, "control": stream_nodes(with_an_event)}


def no_streams(bench: Bench) -> Seen:
    return bench.run(graph_streams, ["plain"], ranks=1)[0]


def streams_of_the_user(bench: Bench) -> Seen:
    return bench.run(graph_streams, ["with an event"], ranks=1)[0]


@judge(no_streams, counter=streams_of_the_user)
def no_stream_operators(seen):
    if not seen["control"]:
        raise ValueError("the reader does not find the stream operators in its control")
    operators = seen["operators"]
    yield part("no stream operator", not operators, ", ".join(operators) or "no stream operator in the graph")


# --- Inductor's passes over a chain of gathered weights ---

LAYERS, WIDTH = 3, 64
REORDER = "reorder_for_compute_comm_overlap"
RAISE_AND_SINK = {REORDER: True, f"{REORDER}_passes": ["raise_comms", "sink_waits"]}


@contextlib.contextmanager
def stated_rates():
    """State the rates of the machine, or overlap scheduling asks CUDA and triton for them."""
    rates = torch.utils._runtime_estimation
    memory = "get_device_dram_gbps" if hasattr(rates, "get_device_dram_gbps") else "get_gpu_dram_gbps"
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(rates, memory, lambda device=None: 50.0))
        stack.enter_context(mock.patch.object(rates, "get_device_tflops", lambda dtype, device=None: 0.05))
        if hasattr(overlap_passes, "estimate_runtime_analytical"):  # torch 2.11 writes it into its log
            stack.enter_context(
                mock.patch.object(overlap_passes, "estimate_runtime_analytical", lambda node: 0.0)
            )
        yield


def milliseconds(node, override_size=None):
    text = str(node.target)
    if "aten.mm" in text:
        return 20.0
    return 15.0 if "c10d" in text and "wait" not in text else 0.0


def scheduling() -> dict:
    """Overlap scheduling with stated times of nodes, so that all ranks choose alike, and no bucketing."""
    there = config.aten_distributed_optimizations
    wanted = {
        "enable_overlap_scheduling": True,
        "max_memory_increase_gb": 10.0,
        "collective_bucketing": False,
        "custom_runtime_estimation": milliseconds,
        "compute_estimator": "analytical",
        "pre_bucketing_fsdp_collectives": False,
    }
    return {f"aten_distributed_optimizations.{n}": v for n, v in wanted.items() if hasattr(there, n)}


def gathered(weight):
    if isinstance(weight, DTensor):
        return weight.redistribute(placements=[Replicate()]).to_local()
    return funcol.all_gather_tensor(weight, 0, dist.group.WORLD)


def chain(x, weights):
    for weight in weights:
        x = x @ gathered(weight)
    return x


def chains(ways: list[str], dtensors: bool = False) -> Seen:
    x = torch.eye(WIDTH)
    shards = [torch.eye(WIDTH).chunk(2)[dist.get_rank()].clone() for _ in range(LAYERS)]
    if dtensors:
        mesh = init_device_mesh("cpu", (2,))
        shards = [DTensor.from_local(shard, mesh, [Shard(0)], run_check=False) for shard in shards]
    settings = {
        "default": {},
        "switch alone": {REORDER: True},
        "passes": RAISE_AND_SINK,
        "scheduling": scheduling(),
    }
    counts = {"gather": LAYERS, "wait": LAYERS, "mm": LAYERS}
    with stated_rates():
        return {"orders": {way: ordered(chain, x, shards, counts=counts, **settings[way]) for way in ways}}


def chain_probe(ways: list[str], dtensors: bool = False):
    def probe(bench: Bench) -> Seen:
        return bench.run(chains, ways, dtensors)[0]

    return probe


def gathers_first(names: list[str]) -> bool:
    return names[: names.index("mm")].count("gather") == LAYERS


@judge(chain_probe(["passes"]), counter=chain_probe(["default"]))
def reorder_passes(seen):
    (names,) = seen["orders"].values()
    yield part("starts all gathers before the first matrix product", gathers_first(names), " ".join(names))


@judge(chain_probe(["scheduling"], True), counter=chain_probe(["default"], True))
def overlap_scheduling(seen):
    (names,) = seen["orders"].values()
    early = names[: names.index("mm")].count("gather")
    moved = all(
        names[: [i for i, name in enumerate(names) if name == "mm"][layer]].count("gather") > layer + 1
        for layer in range(LAYERS - 1)
    )
    yield part(
        "starts the gather of the next weight before each matrix product",
        moved,
        f"{' '.join(names)}: {early} gathers before the first product",
    )


@judge(chain_probe(["default", "switch alone"]), counter=chain_probe(["default", "passes"]))
def switch_alone(seen):
    before, after = seen["orders"].values()
    yield part("leaves the order", before == after, f"default: {' '.join(before)}; set: {' '.join(after)}")


def two_gathers(a, b):
    return gathered(a) @ gathered(b)


def merged(settings: dict) -> Seen:
    """How many all-gathers the code has, and whether the result is that of the whole tensors."""
    a, b = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(0)).unbind()
    got, text = coded(two_gathers, *(one.chunk(2)[dist.get_rank()].clone() for one in (a, b)), **settings)
    found = [name for name in CALLS.findall(text) if "gather" in name]
    if not found:
        raise ValueError("the reader does not find the all-gather in its control")
    return {"gathers": len(found), "right": bool(torch.allclose(got, a @ b, atol=1e-4))}


def bucketed(bench: Bench) -> Seen:
    return bench.run(merged, {"bucket_all_gathers_fx": "all"})[0]


def not_bucketed(bench: Bench) -> Seen:
    return bench.run(merged, {})[0]


@judge(bucketed, counter=not_bucketed)
def bucket_all_gathers(seen):
    yield part("into one collective", seen["gathers"] == 1, f"{seen['gathers']} all-gathers in the code")
    yield part("with the same result", seen["right"], "equal" if seen["right"] else "not equal")


# --- torch's CUDA sanitizer, fed by hand ---


def races(when: str):
    def probe(bench: Bench) -> Seen:
        from torch.cuda._sanitizer import EventHandler

        handler, event, data, first, second = EventHandler(), 1, 7, 0, 1
        for stream in (first, second):
            handler._handle_stream_creation(stream)
        if when == "before the write":
            handler._handle_event_record(event, first)
        handler._handle_kernel_launch(first, set(), {data}, set(), "write", {data: ["x"]})
        if when == "after the write":
            handler._handle_event_record(event, first)
        if when != "never":
            handler._handle_event_wait(event, second)
        errors = handler._handle_kernel_launch(second, {data}, set(), set(), "read", {data: ["x"]})
        return {"races": [type(error).__name__ for error in errors]}

    return probe


def without_and_with(when: str):
    def probe(bench: Bench) -> Seen:
        return {"without": races("never")(bench)["races"], "with": races(when)(bench)["races"]}

    return probe


@judge(without_and_with("after the write"), counter=without_and_with("before the write"))
def events_order_streams(seen):
    without, with_event = len(seen["without"]), len(seen["with"])
    yield part("a race without an event", without == 1, f"{without} races without an event")
    yield part("none where it waits for an event", with_event == 0, f"{with_event} with one")


# --- on a GPU: what runs side by side ---

BUSY_MS, FORWARD_MS = 20.0, 5.0
COPIED = 1 << 28  # bytes, from pinned memory: about 10 ms over PCIe 4
SPARE = 0.5  # of the shorter one, hidden: more than noise leaves
MICROBATCHES = 4
ELEMENTS = 1 << 22  # of a microbatch's message: 16 MiB, well under a forward even over PCIe


def cycles_per_ms() -> float:
    cycles, taken = 20_000_000, []
    for _ in range(12):  # the first ones while the clock still rises
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end))
    return cycles / min(taken[-3:])


def two_kernels(streams: int) -> Seen:
    """How many ms two kernels of the same length run at the same time."""
    busy, default = int(BUSY_MS * cycles_per_ms()), torch.cuda.current_stream()
    other = torch.cuda.Stream() if streams == 2 else default
    for _ in range(2):  # the second time counts
        torch.cuda.synchronize()
        origin = torch.cuda.Event(enable_timing=True)
        origin.record()
        spans = []
        for stream in (default, other):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.stream(stream):
                start.record()
                torch.cuda._sleep(busy)
                end.record()
            spans.append((start, end))
        torch.cuda.synchronize()
    times = [[origin.elapsed_time(event) for event in span] for span in spans]
    together = max(min(end for _, end in times) - max(start for start, _ in times), 0.0)
    # not what was asked for: a GPU's clock moves
    return {"together_ms": together, "each_ms": min(end - start for start, end in times)}


def kernels(streams: int):
    def probe(bench: Bench) -> Seen:
        return bench.run(two_kernels, streams, ranks=1, device="cuda")[0]

    return probe


@judge(kernels(2), counter=kernels(1))
def kernels_run_together(seen):
    together, each = seen["together_ms"], seen["each_ms"]
    yield part("at the same time", together > each / 2, f"{together:.1f} of {each:.0f} ms together")


def median_ms(run, rounds: int = 7) -> float:
    """Milliseconds from the first launch until the GPU is idle, the median of some rounds."""
    taken = []
    for _ in range(rounds + 1):  # the first one does not count
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken[1:])


def copied(side_stream: bool) -> Seen:
    """In ms: a kernel alone, a copy from pinned memory alone, and the copy beside the kernel."""
    busy, device = int(BUSY_MS * cycles_per_ms()), here().device
    stream = torch.cuda.Stream() if side_stream else torch.cuda.current_stream()
    source = torch.empty(COPIED, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(COPIED, dtype=torch.uint8, device=device)

    def copy() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def kernel() -> None:
        torch.cuda._sleep(busy)

    def both() -> None:
        copy()
        kernel()

    return {"kernel": median_ms(kernel), "copy": median_ms(copy), "both": median_ms(both)}


def copies(side_stream: bool):
    def probe(bench: Bench) -> Seen:
        return bench.run(copied, side_stream, ranks=1, device="cuda")[0]

    return probe


@judge(copies(True), counter=copies(False))
def copy_beside_a_kernel(seen):
    kernel, copy, both = seen["kernel"], seen["copy"], seen["both"]
    share = (kernel + copy - both) / min(kernel, copy)
    yield part("runs beside a kernel", share > SPARE, f"{share:.0%} of the copy hidden")


def second_device(waits: bool) -> Seen:
    """When work of the second GPU is done beside a long kernel of the first one."""
    busy = int(BUSY_MS * 5 * cycles_per_ms())
    other = torch.device("cuda", (torch.cuda.current_device() + 1) % torch.cuda.device_count())
    side, y = torch.cuda.Stream(other), torch.zeros(4, device=other)
    for _ in range(2):  # the second time counts
        done = torch.cuda.Event()
        torch.cuda.synchronize()
        torch.cuda.synchronize(other)
        began = time.perf_counter()
        torch.cuda._sleep(busy)
        done.record()
        with torch.cuda.device(other), torch.cuda.stream(side):
            if waits:
                side.wait_event(done)
            y.add_(1)
        side.synchronize()
        after = (time.perf_counter() - began) * 1e3
        torch.cuda.synchronize()
        took = (time.perf_counter() - began) * 1e3
    return {"after_ms": after, "busy_ms": took}


def devices(waits: bool):
    def probe(bench: Bench) -> Seen:
        return bench.run(second_device, waits, ranks=1, device="cuda")[0]

    return probe


@judge(devices(True), counter=devices(False))
def events_across_devices(seen):
    after, busy = seen["after_ms"], seen["busy_ms"]
    yield part(
        "waits for an event of another GPU",
        after >= busy * 0.9,
        f"the first GPU is busy for {busy:.0f} ms; work of the second is done after {after:.1f} ms",
    )


# --- on a GPU: memory that another stream still reads ---


def freed(synchronize: bool) -> Seen:
    """What a slow stream reads of a tensor that is freed meanwhile; it was 1, and the next tensor is 7."""
    if torch.cuda.get_allocator_backend() != "native" or "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        raise CannotTell("torch's own caching allocator, which is switched off here")
    busy, side = int(BUSY_MS * cycles_per_ms()), torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    x, y = torch.ones(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")
    where = x.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(busy)
        y.copy_(x)
    if synchronize:
        side.synchronize()
    del x
    z = torch.full((1 << 20,), 7.0, device="cuda")  # on the default stream, which waits for nothing
    torch.cuda.synchronize()
    return {"same_memory": z.data_ptr() == where, "read": float(y[0])}


def freed_with_and_without(bench: Bench) -> Seen:
    found = {way: bench.run(freed, way == "first", ranks=1, device="cuda")[0] for way in ("first", "not")}
    return {"synchronized": found["first"], "not_synchronized": found["not"]}


def freed_after_the_read(bench: Bench) -> Seen:
    found = bench.run(freed, True, ranks=1, device="cuda")[0]
    return {"synchronized": found, "not_synchronized": found}


@judge(freed_with_and_without, counter=freed_after_the_read)
def freed_memory_is_reused(seen):
    race, safe = seen["not_synchronized"], seen["synchronized"]
    if not safe["same_memory"]:
        raise CannotTell("an allocator that uses the memory again: the next tensor got other memory")
    said = f"the other stream reads {race['read']:g} where 1 was written, and {safe['read']:g} after a synchronize"
    yield part("goes to the next tensor of its own stream", race["same_memory"], said)
    yield part("the reader gets wrong values", race["read"] != 1.0, said)
    yield part("unless the host synchronizes that stream first", safe["read"] == 1.0, said)


# --- on GPUs: microbatches, and NCCL's stream ---


def microbatches(asynchronous: bool) -> Seen:
    """Microbatches, each a kernel and an all-reduce of what it wrote, by torch's profiler."""
    me, size, busy = dist.get_rank(), dist.get_world_size(), int(FORWARD_MS * cycles_per_ms())
    batches = [torch.zeros(ELEMENTS, device=here().device) for _ in range(MICROBATCHES)]

    def step() -> None:
        works = []
        for i, batch in enumerate(batches):
            torch.cuda._sleep(busy)  # the forward of a microbatch
            batch.fill_(me + i + 1.0)
            works.append(dist.all_reduce(batch, async_op=asynchronous))
        for one in works:
            if one is not None:
                one.wait()

    store = dist.distributed_c10d._get_default_store()
    names = [f"ledger microbatches {uuid.uuid4()}"]
    dist.broadcast_object_list(names, 0)
    for number in (0, 1):  # the first one does not count: a profiler's first start takes a while
        torch.cuda.synchronize()
        profile = Profile()
        profile.start()
        # meet over the store: a kernel of NCCL's would be counted
        store.set(f"{names[0]} {number} {me}", "1")
        store.wait([f"{names[0]} {number} {rank}" for rank in range(size)])
        step()
        torch.cuda.synchronize()
        found = profile.stop()
    spans = sorted((event for event in found if event.stream >= 0), key=lambda span: span.start)
    words = {"communication": "nccl", "forward": "spin"}
    return {
        kind: [[span.start / 1e6, span.end / 1e6] for span in spans if word in span.name.lower()]
        for kind, word in words.items()
    }


def steps(asynchronous: bool):
    def probe(bench: Bench) -> Seen:
        return {"ranks": list(bench.on_gpus(microbatches, asynchronous))}

    return probe


@judge(steps(True), counter=steps(False))
def microbatch_beside_the_next(seen):
    beside = []
    for rank in seen["ranks"]:
        for kind in ("communication", "forward"):
            if len(rank[kind]) != MICROBATCHES:
                raise ValueError(f"the profile has {len(rank[kind])} of {MICROBATCHES} kernels of {kind}")
        pairs = zip(rank["communication"], rank["forward"][1:], strict=False)
        beside += [min(c[1], f[1]) > max(c[0], f[0]) for c, f in pairs]
    yield part("runs beside the next microbatch's forward", all(beside), f"{sum(beside)} of {len(beside)} do")


QUEUED = 1 << 24  # 64 MiB of float32: long enough to be seen beside a kernel


def queued(way: str) -> Seen:
    """An all-reduce between two kernels: which stream ran what, and when."""
    device, busy = here().device, int(BUSY_MS * cycles_per_ms())
    x, a = torch.zeros(QUEUED, device=device), torch.ones(1 << 10, device=device)
    side = torch.cuda.Stream()
    for _ in range(2):  # the second time counts: NCCL loads its kernels
        x.zero_()
        dist.barrier()
        torch.cuda.synchronize()
        profile = Profile()
        profile.start()
        began = time.perf_counter()
        torch.cuda._sleep(busy)
        x.fill_(dist.get_rank() + 1.0)
        # an average is work even for a group of one; a sum would be nothing there
        with torch.cuda.stream(side) if way == "from a side stream" else contextlib.nullcontext():
            pending = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=way != "async_op=False")
        if way in ("waited", "synchronized"):
            pending.wait()
        if way == "synchronized":
            torch.cuda.synchronize()
        a.cos_()
        returned_after = time.perf_counter() - began
        torch.cuda.synchronize()
        spans = [event for event in profile.stop() if event.stream >= 0]
    zero = min(span.start for span in spans)
    words = {"fill": ("fillfunctor",), "after": ("cos",), "collective": ("nccl", "onerank", "memcpy")}
    found: Seen = {"host_ms": returned_after * 1e3, "threads": thread_names()}
    for kind, names in words.items():
        mine = [span for span in spans if any(name in span.name.lower() for name in names)]
        if not mine:
            raise ValueError(f"the profile has no kernel of {kind}: {sorted({span.name for span in spans})}")
        first, last = min(mine, key=lambda s: s.start), max(mine, key=lambda s: s.end)
        found[kind] = {
            "stream": last.stream,
            "start": (first.start - zero) / 1e6,
            "end": (last.end - zero) / 1e6,
        }
    return found


def queue(way: str):
    def probe(bench: Bench) -> Seen:
        return {"ranks": list(bench.on_gpus(queued, way))}

    return probe


WAITED, SYNCHRONOUS = queue("waited"), queue("async_op=False")


def same_stream(seen: Seen) -> tuple[list[bool], str]:
    pairs = [(rank["collective"]["stream"], rank["after"]["stream"]) for rank in seen["ranks"]]
    said = "; ".join(f"the collective on stream {own}, the kernels on {other}" for own, other in pairs)
    return [own == other for own, other in pairs], said


@judge(WAITED, counter=SYNCHRONOUS)
def nccl_own_stream(seen):
    same, said = same_stream(seen)
    yield part("another CUDA stream than the current one", not any(same), said)


@judge(SYNCHRONOUS, counter=WAITED)
def nccl_synchronous_on_the_current_stream(seen):
    same, said = same_stream(seen)
    yield part("on the current CUDA stream", all(same), said)


@judge(WAITED, counter=queue("synchronized"))
def nccl_host_goes_on(seen):
    host = max(rank["host_ms"] for rank in seen["ranks"])
    gpu = max(rank["collective"]["end"] for rank in seen["ranks"])
    yield part(
        "without blocking the host",
        host < BUSY_MS / 2 < gpu,
        f"the host is through after {host:.1f} ms, the GPU after {gpu:.0f} ms",
    )


@judge(WAITED, counter=queue("from a side stream"))
def nccl_waits_for_the_data(seen):
    after = [rank["collective"]["start"] >= rank["fill"]["end"] for rank in seen["ranks"]]
    same, said = same_stream(seen)
    said = f"starts after the kernel that writes: {all(after)}; {said}"
    yield part("starts after the kernels queued on the current stream", all(after) and not any(same), said)


@judge(WAITED, counter=queue("not waited"))
def nccl_next_kernel_waits(seen):
    after = [rank["after"]["start"] >= rank["collective"]["end"] for rank in seen["ranks"]]
    yield part("starts after the collective has ended", all(after), f"the next kernel does: {all(after)}")


def gloo_threads(bench: Bench) -> Seen:
    return {"ranks": [{"threads": names} for names in bench.run(thread_names)]}


@judge(WAITED, counter=gloo_threads)
def nccl_threads(seen):
    named = sorted({name for rank in seen["ranks"] for name in rank["threads"] if "nccl" in name.lower()})
    if not named and "collective" in seen["ranks"][0]:
        raise ValueError("NCCL has run, and no thread bears its name: this torch may give them none")
    yield part("threads", bool(named), ", ".join(named) or "no thread with nccl in its name")
