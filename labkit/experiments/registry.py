"""What is known of every experiment before anything of it is imported: one table, data only.

The command line lists, parses and refuses by this table, and imports an experiment's module only to run it. The tests
hold the words that stand here and in a module against each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from labkit.experiments.experiment import Experiment
from labkit.experiments.options import Option

__all__ = ["EXPERIMENTS"]


def _switch(name: str, help: str) -> Option:
    return Option(name, bool, help)


def _whole(name: str, help: str, most: int, least: int = 1) -> Option:
    return Option(name, int, help, least=least, most=most)


def _number(name: str, help: str, metavar: str, least: float, most: float) -> Option:
    return Option(name, float, help, metavar, least=least, most=most)


def _text(name: str, help: str, metavar: str, pattern: str) -> Option:
    return Option(name, str, help, metavar, pattern=pattern)


def _only(name: str, *among: str, what: str = "only these", metavar: str = "NAME") -> Option:
    return Option(name, str, what, metavar, many=True, among=among)


# what several experiments take: one object, because one option has one meaning
BLOCKS = _whole("blocks", "transformer blocks (default 40)", 1000)
ROUNDS = _whole("rounds", "timing rounds; fewer than 8 tell nothing", 10_000)
ALSO = Option(
    "also", str, "time on this backend as well", "BACKEND", many=True, among=("nccl", "gloo", "shm", "fake")
)
FULL = _switch("full", "the whole grid, for patient readers")
FRESH = _switch("fresh", "begin anew, whatever an interrupted sweep left")

_RANGES = r"[\d\s:,-]+"  # what it says of sizes is read by `sweep.parse_range`
_SIZES = ("tiny", "small", "medium", "large")

# fmt: off
_TABLE = (
    Experiment(
        "cliff",
        "cliff.experiment",
        "The graph-break cliff",
        "How does one decorator on the all-reduce cost half the speed?",
        "topic 11, experiments 1, 2 and 4; topic 12, experiment 1",
        link="shm",  # on a CPU: gloo's own delay would hide what is measured
        options=(
            BLOCKS,
            ROUNDS,
            _text("variants", "letters of the variants (default ABCDE)", "LETTERS", "[A-E]+"),
            ALSO,
            _text("elsewhere", "letters of the variants on other links and host only (default all)", "LETTERS",
                  "[A-E]+"),
            _switch("cold", "compile from an empty cache"),
            _switch("regional", "also time the first call block by block"),
        ),
        record={"cold": True, "regional": True},  # lesson 04 quotes what a compile from nothing took
    ),
    Experiment(
        "collectives",
        "functional.experiment",
        "Every collective, eager and compiled",
        "Which collectives does the compiler keep in its graph, and with the same numbers?",
        "topic 11, introduction and mental model; the compile post, on translating traditional collectives",
        link="gloo",  # on a CPU: `shm` does its work at once, and would hide what async_op=True is about
        options=(
            Option("only", str, "only collectives whose names begin so", "NAME", many=True),
            Option("compiler", str, "torch.compile's backend (default aot_eager)", "NAME",
                   among=("eager", "aot_eager", "inductor")),
        ),
    ),
    Experiment(
        "eager_trap",
        "trap.experiment",
        "The eager trap",
        "Why not functional collectives everywhere?",
        "topic 11, experiment 3; PyTorch issue 138773",
        link="shm",  # on a CPU: gloo's own delay would hide what is measured
        options=(
            BLOCKS,
            ROUNDS,
            _text("sizes", "bytes of a call's larger tensor, such as 4,16K,1M (default 4 to 64M in six steps)", "LIST",
                  r"[\d\s,kKmMgG]+"),
            _number("patience", "seconds that one size may take (default 4); above, it is left out", "S", 0.001, 3600),
            ALSO,
        ),
    ),
    Experiment(
        "overlap",
        "streams.experiment",
        "Communication beside computation",
        "How much of an all-reduce is hidden, by whom, and by which definition?",
        "slides: What Are Streams?, microbatch overlapping; topic 11, on overlap",
        link="gloo",
        options=(
            _number("mib", "size of the all-reduce in MiB (default 16)", "MIB", 0.001, 1024),
            _number("late", "ms by which the last rank comes late in the first case (default 60)", "MS", 0.001,
                    10_000),
            _switch("brief", "only the large message, and nothing compiled"),
            ROUNDS,
        ),
    ),
    Experiment(
        "comm_passes",
        "shared.comm_passes",
        "Inductor's passes for communication",
        "Do Inductor's passes move collectives away from their waits, and is the step faster for it?",
        "slides: use case microbatch overlapping; topic 11, on overlap; torch's own settings",
        link="gloo",
        options=(
            _whole("width", "size of the square weights (default 384)", 4096),
            _whole("layers", "layers, each with an all-gather (default 3)", 64),
            ROUNDS,
        ),
    ),
    Experiment(
        "divergence",
        "symmetry.experiment",
        "Drill by defence: one rank differs",
        "What does a rank that differs do to the others, and which defence notices before it does?",
        "topic 12, experiment 2, rank-parity invariants and gotchas",
        link="gloo",
        device="cpu",
        options=(
            _only("drill",
                  *("shape", "size", "dtype", "flag", "backend", "branch", "count", "order", "inputs", "break"),
                  "recompile", what="only these drills"),
        ),
    ),
    Experiment(
        "guards",
        "guards.experiment",
        "Guards and shapes: what compiles again",
        "Which changes from call to call make it compile again, and which of them have to be frozen?",
        "topic 12, experiment 3; the compile post, core claim 3",
        link="gloo",
        device="cpu",
        options=(
            _only("dimension", *("sequence length", "batch", "dtype", "strides", "requires_grad"),
                  *("int argument", "float argument", "bool argument", "str argument"),
                  *("int attribute", "float attribute", "grad mode", "thread count")),
            _only("policy", *("default", "mark_dynamic", "mark_unbacked", "dynamic=True", "dynamic=False"),
                  what="how sizes are told"),
            _text("lengths", "sequence lengths to walk through, such as 16,24,32 or 16:128:16", "LIST", _RANGES),
            _text("batches", "batch sizes to walk through, such as 2,4 or 2:8:2", "LIST", _RANGES),
            ROUNDS,
            FULL,
            FRESH,
        ),
    ),
    Experiment(
        "depth",
        "guards.depth",
        "Compile time over depth",
        "How does the first call grow with depth, and what do regions do about it?",
        "topic 12, experiment 3 and 'regional compilation'; the compile post, core claim 5",
        link="shm",
        device="cpu",
        options=(
            _text("depths", "blocks of the models, such as 1,2,4,8 or 2:12:2 (default 1,2,4,8)", "LIST", _RANGES),
            ROUNDS,
            FULL,
            FRESH,
        ),
    ),
    Experiment(
        "drift",
        "guards.drift",
        "Numeric drift: compiled against eager",
        "Do compiled code and eager give the same numbers, and if not, since which stage?",
        "topic 12, gotchas; the compile post, actionables",
        link="gloo",
        options=(_only("dtype", "float32", "bfloat16"), FRESH),
    ),
    Experiment(
        "odd_shape",
        "guards.odd_shape",
        "One rank sees another shape",
        "What do ranks do that compile for other shapes, and do they still meet?",
        "topic 12, experiment 2 and mental model; the compile post, core claim 10",
        link="gloo",
        device="cpu",
    ),
    Experiment(
        "scale",
        "scale.experiment",
        "Past this machine",
        "What would the block do on 1,024 ranks, and what would its communication cost?",
        "topic 12, experiment 4; Patarasuk and Yuan 2009; Thakur, Rabenseifner and Gropp 2005",
        link="shm",  # on a CPU; gloo is measured as well
        options=(
            _text("worlds", "world sizes to trace, such as 2,4,1024 (default 2 to 1024 in doublings)", "LIST",
                  r"[\d\s,]+"),
            _whole("dim", "features of the block (default 1024)", 65_536),
            _whole("heads", "heads of the block, which every world size divides (default 1024)", 65_536),
            _whole("tokens", "length of the sequence (default 32)", 65_536),
            _number("alpha", "the link's latency, us a step; with --bandwidth, instead of measuring", "US", 0, 1e9),
            _number("bandwidth", "the link's bandwidth, GB/s; with --alpha", "GBPS", 1e-6, 1e9),
            _number("overhead", "a forward's fixed cost, us; with --rate, instead of measuring", "US", 0, 1e9),
            _number("rate", "a rank's rate, Gflop/s; with --overhead", "GFLOPS", 1e-6, 1e12),
            Option("algorithm", str, "of all_reduce in the model (default ring)", "NAME",
                   among=("ring", "doubling", "best")),
            _switch("trace", "trace and compute the model only, and measure nothing: give all four constants"),
            ROUNDS,
            ALSO,
        ),
    ),
    Experiment(
        "mesh_or_world",
        "mesh.experiment",
        "Rank 0 outside the mesh",
        "Who must be symmetric with whom, and what does a rank cost that need not be there?",
        "topic 12, experiment 5 and mental model ('rank0-out-of-mesh')",
        link="gloo",  # three ranks that spin would take more cores than a laptop has
        device="cpu",
        ranks=3,
        options=(ROUNDS,),
    ),
    Experiment(
        "wrong_group",
        "mesh.wrong_group",
        "The wrong group",
        "What does a collective on the wrong group do, and who says so before it waits?",
        "topic 12, 'Group boundary confusion', the invariants' row Topology, and experiment 5",
        link="gloo",
        device="cpu",
        ranks=3,
        options=(
            _only("mistake", *("world_inside", "meets_the_plan", "no_group", "divisor"),
                  *("joins", "joins_compiled", "half_made", "wrong_root", "stays_away"),
                  what="only these mistakes of wrong_group"),
        ),
    ),
    Experiment(
        "cold",
        "cold.experiment",
        "Cold and warm: what the first call costs",
        "What does the first call cost, and which ways to pay it before there are?",
        "topic 12, experiment 6; the compile post, core claims 1, 10 and 11",
        link="shm",
        device="cpu",
        options=(
            _only("form", *("eager", "cold", "second process", "cache artifacts", "AOT-precompiled", "AOTInductor"),
                  *("one rank cold", "once, and shipped", "block by block", "nested region")),
            _whole("requests", "requests that are timed, the first included (default 100)", 100_000, least=4),
            _number("budget", "seconds that a rank may take until it is ready", "S", 0.001, 86_400),
            ROUNDS,
            FULL,
            FRESH,
        ),
    ),
    Experiment(
        "survival",
        "cold.survival",
        "What survives what",
        "Which compiled artifacts survive which change, which are refused, and which go wrong in silence?",
        "topic 12, experiment 6; the compile post, core claims 1 and 11",
        link="gloo",
        device="cpu",
        options=(
            _only("kind", "second process", "cache artifacts", "AOT-precompiled", "AOTInductor"),
            _only("change", *("nothing", "shape", "weights", "code", "setting", "environment", "torch version")),
            FULL,
            FRESH,
        ),
    ),
    Experiment(
        "placements",
        "dtensor.placements",
        "Placements: who holds what",
        "Which collective does a change of placement cost, forward and backward?",
        "from NCCL to DTensor, sections 4 and 5",
        link="gloo",  # its bytes pass sockets, where they can be counted
        options=(_whole("side", "rows and columns of the matrices (default 4)", 4096),),
    ),
    Experiment(
        "routes",
        "dtensor.experiment",
        "DTensor or explicit",
        "What does DTensor cost over explicit collectives, and what does compiling leave of it?",
        "topic 12, experiment 4; topic 11, on the two compiler-compatible routes; the compile post, core claim 8",
        link="shm",  # on a CPU: gloo's own delay would hide what is measured
        options=(
            _only("mlp", *_SIZES, what="a size of MLP", metavar="SIZE"),
            _only("block", *_SIZES, what="a size of transformer block", metavar="SIZE"),
            ROUNDS,
        ),
    ),
    Experiment(
        "training",
        "ddp.experiment",
        "Training under the compiler",
        "Which routes train the model that one process would train, and what do they need for it?",
        "topic 12, introduction and mental model; the compile post, core claims 2 and 7",
        link="gloo",
        options=(
            _whole("steps", "steps of gradient descent before gradients are compared (default 3)", 10_000),
        ),
        parts={
            "routes": "every route beside one process: losses, gradients, graphs, memory",
            "ddp": "DDP's modes on the clock: when each bucket's all-reduce starts",
            "buckets": "the size of DDP's buckets: graphs, overlap, and time",
            "fsdp": "FSDP2 and gathered weights on the clock",
            "backward": "compiled autograd: hooks, recompiles, cost",
            "passes": "Inductor's passes on gathered weights",
            "curves": "an all-reduce in place that learns something else",
            "pipeline": "two stages and their microbatches",
            "drills": "what goes wrong on one rank, and how it ends",
        },
    ),
    Experiment(
        "break-it",
        "break_it.experiment",
        "Ten break-it tests",
        "Does it crash rather than hang, and say why?",
        "topic 12, minimal daily regression suite (break-it tests)",
        link="gloo",
        options=(_switch("undefended", "leave out the part that is tested: every test has to go red"),),
        parts={
            "smoke": "a call without work in between",
            "env": "SCOPE_KV_BIAS_BACKEND differs on one rank",
            "compile-gate": "nothing; undefended, the all-reduce is disabled",
            "first-break": "a slice by a tensor's value; undefended, a log call before it",
            "guards": "nothing; undefended, the warmup has another shape",
            "one-dimension": "a length varies, undefended on one rank only",
            "orphan": "the leader is killed",
            "preflight": "metadata that cannot be pickled",
            "digest": "one element on rank 0, by 1e-6",
            "fingerprint": "one weight of a shard on the last rank",
        },
    ),
)
# fmt: on
EXPERIMENTS: Mapping[str, Experiment] = {experiment.name: experiment for experiment in _TABLE}
