"""Programs whose compiles, breaks and collectives are known: what the golden tables say of each stands in `golden/`.

A program is a function that builds something and returns its step, a function of the number of the turn. It is called
for each turn in order, and a table has the compiles of all turns and what ran in the last one. Each program has its
places in its own lines: `spike+12` is the twelfth line after `def spike`, so that a new program changes no table.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

Step = Callable[[int], object]


@dataclass(frozen=True)
class Program:
    """A program and how it is run: the number of ranks in its process group, and how often its step is called."""

    make: Callable[[], Step]
    ranks: int
    turns: int

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.make.__name__


PROGRAMS: dict[str, Program] = {}


def program(ranks: int = 1, turns: int = 3):
    """Enter a function in `PROGRAMS`."""

    def enter(make: Callable[[], Step]) -> Callable[[], Step]:
        PROGRAMS[make.__name__] = Program(make, ranks, turns)
        return make

    return enter


def call(step: Step, turn: int) -> str:
    """Run one turn, and return the type of the error that it raised, or ''."""
    try:
        step(turn)
    except Exception as error:
        return type(error).__name__
    return ""


@functools.cache
def _first_lines() -> list[tuple[int, str]]:
    """Where each function and class of this file begins, the last one first."""
    nodes = ast.parse(Path(__file__).read_text(encoding="utf-8")).body
    found = [(node.lineno, node.name) for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return found[::-1]


def place(file: str, line: int) -> str:
    """Name a line: 'spike+12' in this file, 'cell+3' in a cell, and elsewhere the file alone, for torch's lines move.

    >>> place("/somewhere/torch/nn/modules/container.py", 250)
    'container.py'
    """
    if "ipython-input" in file:
        return f"cell+{line}"
    if Path(file).name != Path(__file__).name:
        return Path(file).name.partition(">")[0]  # of a graph that torch wrote, without its number
    return next((f"{name}+{line - first}" for first, name in _first_lines() if first <= line), f"+{line}")


# --- What several programs use ---


@torch.compiler.disable
def hidden(*_):
    """What Dynamo has to leave the graph for."""


@torch.compiler.disable
def hidden_reduce(x):
    """An all-reduce in place that Dynamo does not see."""
    dist.all_reduce(x)
    return x


def reduce_in_place(x):
    """An all-reduce in place that Dynamo puts into its graph."""
    dist.all_reduce(x)
    return x


def reduce_functional(x):
    """An all-reduce that returns a new tensor."""
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def small_net() -> nn.Sequential:
    """Two linear layers with a ReLU between them."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def batch(size: int = 4) -> torch.Tensor:
    """Ones, in rows of eight."""
    return torch.ones(size, 8)


class Norm(nn.Module):
    """A norm over features that are split over ranks."""

    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce

    def forward(self, x):
        squares = self.reduce(x.pow(2).sum(-1, keepdim=True))
        return x * torch.rsqrt(squares / 16 + 1e-6)


class Block(nn.Module):
    """Four all-reduces: two in norms, two of its own."""

    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce
        self.q_norm, self.k_norm = Norm(reduce), Norm(reduce)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        q = self.q_norm(self.linear(x))
        k = self.k_norm(self.linear(x))
        x = x + self.reduce(q * k)
        return x + self.reduce(x * 2)


class Blocks(nn.Module):
    """Two blocks in a loop."""

    def __init__(self, reduce):
        super().__init__()
        self.blocks = nn.ModuleList(Block(reduce) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def without_grad(run) -> Step:
    """The step of a forward for inference."""

    def step(turn):
        with torch.no_grad():
            run(batch())

    return step


# --- Gates: what an engine has to say before anything else ---


@program(ranks=2)
def spike():
    """A disabled all-reduce, a print on one rank, and an all-reduce in the graph, at the caller's line."""

    class Layer(nn.Module):
        def __init__(self, d=16):
            super().__init__()
            self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

        def forward(self, x):
            h = F.gelu(self.a(x))
            y = self.b(h)
            y = hidden_reduce(y)
            if dist.get_rank() == 0:
                print(end="")
            dist.all_reduce(y)  # the gate
            return x + y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x.sum()

    net = torch.compile(Net(), backend="aot_eager")
    return lambda turn: net(torch.ones(4, 16))


@program()
def runs_twice():
    """What is compiled once runs twice in a step."""
    run = torch.compile(lambda x: x.sin() + 1, backend="eager")
    return lambda turn: run(run(torch.ones(3)))


# --- Whole models: inference, training, optimizers ---


@program(turns=5)
def inference():
    """One graph, no gradients."""
    return without_grad(torch.compile(small_net(), backend="eager"))


@program(turns=5)
def training():
    """Forward, backward, and an optimizer that is not compiled."""
    net = small_net()
    run, opt = torch.compile(net, backend="aot_eager"), torch.optim.Adam(net.parameters())

    def step(turn):
        run(batch()).sum().backward()
        opt.step()
        opt.zero_grad()

    return step


@program(turns=5)
def step_in_compiled_function():
    """The whole step in a compiled function: its backward breaks the graph."""
    net = small_net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="aot_eager")
    def train_step(x):
        net(x).sum().backward()
        opt.step()
        opt.zero_grad()

    return lambda turn: train_step(batch())


@program(turns=5)
def compiled_optimizer_with_schedule():
    """Optimizer and schedule in one compiled function: their numbers change from step to step."""
    net = small_net()
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 1.0, total_steps=6)

    @torch.compile(backend="eager")
    def update():
        opt.step()
        schedule.step()

    def step(turn):
        net(batch()).sum().backward()
        update()

    return step


@program(turns=4)
def compiled_optimizer():
    """An optimizer's own step, compiled."""
    layer = nn.Linear(4, 4)
    update = torch.compile(torch.optim.Adam(layer.parameters()).step, backend="eager")

    def step(turn):
        layer(torch.ones(2, 4)).sum().backward()
        update()

    return step


@program(turns=5)
def compiled_closure():
    """A closure that an optimizer calls several times in a step."""
    net = small_net()
    opt = torch.optim.LBFGS(net.parameters(), max_iter=2)

    @torch.compile(backend="eager")
    def closure():
        opt.zero_grad()
        loss = net(batch()).square().sum()
        loss.backward()
        return loss

    return lambda turn: opt.step(closure)


@program(turns=5)
def checkpointed():
    """Activation checkpointing: a graph inside the graph."""
    net = small_net()
    run = torch.compile(lambda x: checkpoint(net, x, use_reentrant=False), backend="aot_eager")
    return lambda turn: run(batch()).sum().backward()


@program(turns=5)
def names_in_compiled_function():
    """A comprehension over the names of parameters."""
    net = small_net()

    @torch.compile(backend="aot_eager")
    def penalised(x):
        return net(x).sum() + sum(p.square().sum() for name, p in net.named_parameters() if "bias" in name)

    return lambda turn: penalised(batch()).backward()


@program()
def backward():
    """A function of the program with a backward, and a loss of torch."""
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    @torch.compile(backend="aot_eager")
    def loss_of(x, y):
        logits = net(x)
        return F.cross_entropy(logits, y)

    def step(turn):
        loss_of(torch.ones(8 + turn, 16), torch.zeros(8 + turn, dtype=torch.long)).backward()

    return step


@program()
def autograd_function():
    """An autograd function of the program inside a compiled one."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 2 + 0 * x

    run = torch.compile(lambda x: Doubled.apply(x.sin()).sum(), backend="aot_eager")
    return lambda turn: run(torch.ones(3, requires_grad=True)).backward()


@program()
def compiled_autograd():
    """The backward compiled as well."""
    net = small_net()
    run = torch.compile(net, backend="aot_eager")

    def step(turn):
        loss = run(batch()).sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()

    return step


# --- Breaks ---


@program()
def toy_step():
    """One break, in the compiled function."""

    def step(x):
        y = hidden_reduce(x * 0.5)
        return y + 1

    run = torch.compile(step, backend="eager")
    return lambda turn: run(torch.ones(4))


@program()
def toy_deeper():
    """The same break one call deeper: it breaks the caller as well."""

    def step(x):
        y = hidden_reduce(x * 0.5)
        return y + 1

    def deeper(x):
        return step(x) * 2

    run = torch.compile(deeper, backend="eager")
    return lambda turn: run(torch.ones(4))


@program()
def toy_deeper_nested():
    """The same with `nested_graph_breaks`."""

    def step(x):
        y = hidden_reduce(x * 0.5)
        return y + 1

    def deeper(x):
        return step(x) * 2

    run = torch.compile(deeper, backend="eager")

    def turn_of(turn):
        with torch._dynamo.config.patch(nested_graph_breaks=True):
            run(torch.ones(4))

    return turn_of


@program()
def toy_calls_step_8_times():
    """A loop around the call: its frame is given up, the called function is compiled."""

    def step(x):
        y = hidden_reduce(x * 0.5)
        return y + 1

    def calls_step_8_times(x):
        for _ in range(8):
            x = step(x)
        return x

    run = torch.compile(calls_step_8_times, backend="eager")
    return lambda turn: run(torch.ones(4))


@program()
def toy_breaks_in_the_loop():
    """The break stands in a loop: the frame is given up and nothing is compiled."""

    def breaks_in_the_loop(x):
        for _ in range(8):
            y = hidden_reduce(x * 0.5)
            x = y + 1
        return x

    run = torch.compile(breaks_in_the_loop, backend="eager")
    return lambda turn: run(torch.ones(4))


@program()
def toy_breaks_in_a_try():
    """The break stands in a try with a finally: the frame is given up."""

    def breaks_in_a_try(x):
        try:
            y = hidden_reduce(x * 0.5)
            return y + 1
        finally:
            pass

    run = torch.compile(breaks_in_a_try, backend="eager")
    return lambda turn: run(torch.ones(4))


@program(turns=5)
def break_in_a_loop():
    """A call of `graph_break` in a loop."""

    def given_up(x):
        for _ in range(3):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    run = torch.compile(given_up, backend="eager")
    return lambda turn: run(batch())


@program()
def breaks_and_returns():
    """The break's value is the function's: nothing is left to resume."""

    def last(x):
        return hidden_reduce(x * 2)

    run = torch.compile(last, backend="eager")
    return lambda turn: run(torch.ones(4))


@program()
def nothing_between():
    """Two breaks: the first region has no graph."""

    def step(x):
        hidden("a")
        x = x + 1
        hidden("b")
        return x * 2

    run = torch.compile(step, backend="eager")
    return lambda turn: run(torch.ones(3))


@program(turns=4)
def one_version_breaks():
    """Of two compiles of a function, one ends in a break: only its runs are executed breaks."""

    def either(x, talk):
        x = x + 1
        if talk:
            hidden()
        return x * 2

    run = torch.compile(either, backend="eager")
    return lambda turn: [run(torch.ones(3), talk) for talk in (True, False, False)]


@program()
def branch_on_data():
    """A branch on a tensor's value, and a number that is taken out of a tensor."""

    def scaled(x):
        total = x.sum().item()
        y = x * 2
        if y.sum() > 3:
            return y / total
        return y

    run = torch.compile(scaled, backend="aot_eager")
    return lambda turn: run(torch.ones(4))


@program()
def metrics():
    """A loss that returns numbers: the rest of the frame is compiled again for their values."""

    def loss_of(x, target):
        distance = (x - target).abs().mean()
        scores = {"distance": distance.item(), "largest": x.max().item()}
        return distance * 2, scores

    run = torch.compile(loss_of, backend="eager")
    return lambda turn: run(torch.full((4,), 1.0 + turn), torch.zeros(4))


@program()
def graph_without_operators():
    """A number from a break goes into a frame that breaks at once: the backend is given a graph without operators."""

    def told(x):
        y = x * 2
        print(end=f"{y.max().item() * 0}"[:0])
        z = y + 1
        return z

    run = torch.compile(told, backend="eager")
    return lambda turn: run(torch.full((4,), 1.0 + turn))


@program()
def branch_and_loop():
    """A loop whose end depends on data."""

    def grow(x):
        y = x * 2
        while y.sum() < 100:
            y = y * 2
        return y

    run = torch.compile(grow, backend="eager")
    return lambda turn: run(torch.ones(3))


@program()
def break_in_a_callee():
    """A print in a function that the compiled one calls."""

    def broken(x):
        y = x.tan()
        print(end="")
        return y

    def caller(x):
        y = x + 1
        z = broken(y)
        return z * 2

    run = torch.compile(caller, backend="aot_eager")
    return lambda turn: run(torch.ones(4))


@program()
def trying():
    """A print inside a try with an except."""

    def tried(x):
        try:
            x = x.sin()
            print(end="")
        except ValueError:
            x = x.cos()
        return x

    run = torch.compile(tried, backend="aot_eager")
    return lambda turn: run(torch.ones(4))


@program()
def fullgraph_error():
    """A break where none is allowed: an error, and no frame given up."""

    def whole(x):
        y = x.sin()
        print(end="")
        return y.cos()

    run = torch.compile(whole, backend="eager", fullgraph=True)
    return lambda turn: run(torch.ones(4))


@program()
def failing_backend():
    """A backend that raises."""

    def refuses(graph, inputs):
        raise RuntimeError("this backend refuses")

    run = torch.compile(lambda x: x + 2, backend=refuses)
    return lambda turn: run(torch.ones(2))


@program()
def error_in_the_program():
    """An error of the program's own in a compiled function."""

    def wrong(x):
        x = x.sin()
        raise KeyError("mine")

    run = torch.compile(wrong, backend="eager")
    return lambda turn: run(torch.ones(2))


# --- What is compiled, and under which name ---


@program()
def everything_inlined():
    """A decorated function, a generator, a comprehension, a lambda and a Sequential, inlined into one graph."""

    def logged(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return fn(*args)

        return wrapper

    @logged
    def decorated(x):
        return x.sin() + 1

    def pieces(x):
        for i in range(3):
            yield x * i

    def helper(x):
        y = x.cos()
        return y * 2

    seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def everything(x):
        a = decorated(x)
        b = sum(pieces(x))
        c = [helper(x + i) for i in range(3)]
        d = (lambda z: z.sqrt())(x.abs())
        return a + b + d + seq(x) + torch.stack([t.mean() for t in c]).sum()

    run = torch.compile(everything, backend="aot_eager")
    return without_grad(lambda x: run(torch.ones(4, 4)))


@program()
def generator():
    """A generator that is compiled itself."""

    def pieces(x):
        for i in range(3):
            yield x * i

    run = torch.compile(pieces, backend="eager")
    return lambda turn: list(run(torch.ones(4)))


@program()
def method():
    """A compiled method."""

    class Thing:
        @torch.compile(backend="eager")
        def hyperbolic(self, x):
            return x.sinh()

    return lambda turn: Thing().hyperbolic(torch.ones(4))


@program()
def equal_code():
    """Three functions of equal code."""
    made = [torch.compile(lambda x, k=k: hidden(k) or x + k, backend="eager") for k in range(3)]
    return lambda turn: [run(torch.ones(2)) for run in made]


@program()
def same_forward_name():
    """Two modules, one inside the other, break in a `forward` each; torch merges the frames of one name."""

    class Inner(nn.Module):
        def forward(self, x):
            for _ in range(2):
                x = x.sin()
                print(end="")
            return x

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x * 2) + 1

    run = torch.compile(Outer(), backend="eager")
    return lambda turn: run(torch.ones(4))


@program()
def module_list_in_a_loop():
    """A model whose loop over layers meets a break: it is given up, its layers are compiled."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            y = self.linear(x)
            hidden()
            return y.relu()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    return without_grad(torch.compile(Net(), backend="eager"))


@program()
def sequential_blocks():
    """Blocks that are `nn.Sequential`, compiled one by one."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    for block in net:
        block.compile(backend="eager")
    return without_grad(net)


@program()
def library_lstm():
    """A module of torch that Dynamo leaves alone."""
    lstm = nn.LSTM(8, 8)
    run = torch.compile(lambda x: lstm(x * 2)[0] + 1, backend="eager")
    return without_grad(run)


@program()
def nested():
    """A compiled function that a disabled one calls, and one that is called inside a graph."""
    inner = torch.compile(lambda x: x.sin() + 1, backend="eager")
    middle = torch.compiler.disable(lambda x: inner(x))
    outer = torch.compile(lambda x: middle(x * 2) + inner(x), backend="eager")
    return lambda turn: outer(torch.ones(3))


@program(turns=5)
def compiled_in_a_compiled_function():
    """A compiled model inside a compiled function that breaks."""
    inner = torch.compile(small_net(), backend="eager")

    @torch.compile(backend="eager")
    def outer(x):
        print(end="")
        return inner(x).sin()

    return without_grad(outer)


@program()
def cell():
    """A function of a notebook's cell: its file is in linecache alone."""
    source = 'def in_a_cell(x):\n    y = x.sin()\n    print(end="")\n    return y.cos()\n'
    name = "<ipython-input-1-0123456789ab>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space = {}
    exec(compile(source, name, "exec"), space)
    run = torch.compile(space["in_a_cell"], backend="eager")
    return lambda turn: run(torch.ones(4))


# --- Recompiles ---


@program(turns=5)
def sizes_that_change():
    """A new size each turn, none of them dynamic."""
    run = torch.compile(small_net(), backend="eager", dynamic=False)

    def step(turn):
        with torch.no_grad():
            run(batch(2 + turn))

    return step


@program(turns=4)
def size_becomes_dynamic():
    """A new size each turn: the second compile is for any."""

    def sized(x):
        return x.sum(0) * x.shape[0]

    run = torch.compile(sized, backend="eager")
    return lambda turn: run(torch.ones(4 + turn, 8))


@program(turns=4)
def branch_on_size():
    """A dynamic size, and a branch on it."""

    def sized(x):
        if x.shape[0] > 8:
            return x * 2
        return x + 1

    run = torch.compile(sized, backend="eager", dynamic=True)
    return lambda turn: run(torch.ones((4, 12, 5, 6)[turn]))


@program(turns=4)
def flag_type_and_gradient():
    """A flag, a type and a gradient change, one in each turn."""

    def branch(x, flag):
        y = x.sin()
        if flag:
            y = y + 1
        return y

    run = torch.compile(branch, backend="eager", dynamic=False)

    def step(turn):
        x = torch.ones(4, dtype=torch.float64 if turn == 2 else torch.float32, requires_grad=turn == 3)
        run(x, turn < 1)

    return step


@program(turns=3)
def global_state():
    """The mode of gradients changes, and a number of the module."""
    rate = {"value": 1}

    def scaled(x):
        return x * rate["value"]

    run = torch.compile(scaled, backend="eager")

    def step(turn):
        rate["value"] = 1 + turn // 2
        with torch.set_grad_enabled(turn == 0):
            run(torch.ones(3))

    return step


@program(turns=2)
def attribute_of_each_block():
    """One forward for several blocks, each with its own number: a compile for each."""

    class Layer(nn.Module):
        def __init__(self, index):
            super().__init__()
            self.linear, self.index = nn.Linear(8, 8), index

        def forward(self, x):
            return self.linear(x) * (1.0 + 0.01 * self.index)

    layers = nn.ModuleList(Layer(i) for i in range(4))
    for layer in layers:
        layer.compile(dynamic=False, backend="eager")

    def run(x):
        for layer in layers:
            x = layer(x)

    return without_grad(run)


@program(turns=6)
def recompile_limit():
    """A new number of dimensions each turn: given up at the limit."""

    def sized(x):
        return x + 1

    run = torch.compile(sized, backend="eager")

    def step(turn):
        with torch._dynamo.config.patch(recompile_limit=3):
            run(torch.ones([2] * (turn + 1)))

    return step


@program(turns=2)
def recompile_limit_fullgraph():
    """A name in each block under `fullgraph=True`: the limit is an error."""

    class Layer(nn.Module):
        def __init__(self, index):
            super().__init__()
            self.name, self.linear = f"layers.{index}", nn.Linear(8, 8)

        def forward(self, x, scales):
            return self.linear(x) * scales[self.name]

    layers = nn.ModuleList(Layer(i) for i in range(4))
    scales = {layer.name: torch.ones(()) for layer in layers}
    for layer in layers:
        layer.compile(fullgraph=True, backend="eager")

    def step(turn):
        with torch._dynamo.config.patch(recompile_limit=3), torch.no_grad():
            x = batch()
            for layer in layers:
                x = layer(x, scales)

    return step


# --- Collectives: eager, in the graph, hidden ---


@program(ranks=2)
def eager_in_place():
    """No compile: eight all-reduces."""
    return without_grad(Blocks(reduce_in_place))


@program(ranks=2)
def eager_functional():
    """No compile: eight functional all-reduces."""
    return without_grad(Blocks(reduce_functional))


@program(ranks=2)
def whole_functional():
    """The model compiled, functional all-reduces: one graph."""
    return without_grad(torch.compile(Blocks(reduce_functional), backend="aot_eager"))


@program(ranks=2)
def whole_in_place():
    """The model compiled, all-reduces in place: one graph."""
    return without_grad(torch.compile(Blocks(reduce_in_place), backend="eager"))


@program(ranks=2)
def whole_disabled():
    """The model compiled, its all-reduces hidden."""
    return without_grad(torch.compile(Blocks(hidden_reduce), backend="eager"))


@program(ranks=2)
def whole_disabled_nested():
    """The same with `nested_graph_breaks`."""
    run = torch.compile(Blocks(hidden_reduce), backend="eager")

    def step(turn):
        with torch.no_grad(), torch._dynamo.config.patch(nested_graph_breaks=True):
            run(batch())

    return step


@program(ranks=2)
def by_block():
    """Each block compiled, functional all-reduces: one graph, run for each block."""
    net = Blocks(reduce_functional)
    for block in net.blocks:
        block.compile(backend="eager")
    return without_grad(net)


@program(ranks=2)
def by_block_disabled():
    """Each block compiled, all-reduces hidden."""
    net = Blocks(hidden_reduce)
    for block in net.blocks:
        block.compile(backend="eager")
    return without_grad(net)


@program(ranks=2)
def five_collectives():
    """All-reduce, all-gather and reduce-scatter in a graph, in place and functional, one of them through a helper."""

    def helper(x):
        return funcol.all_reduce(x, "sum", dist.group.WORLD)

    @torch.compile(backend="aot_eager")
    def collectives(x, out, part):
        x = x * 2
        dist.all_reduce(x)
        y = helper(x + 1)
        z = funcol.all_gather_tensor(y, 0, dist.group.WORLD)
        dist.all_gather_into_tensor(out, x)
        dist.reduce_scatter_tensor(part, out)
        return z.sum() + out.sum() + part.sum()

    return lambda turn: collectives(torch.ones(4, 8), torch.empty(8, 8), torch.empty(4, 8))


@program(ranks=2)
def eager_collectives():
    """Collectives outside of compiled code, of several types, and one that is waited for later."""

    def several():
        x = torch.ones(4, dtype=torch.float64)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        dist.broadcast(torch.ones(3, dtype=torch.int64), 0)
        dist.all_gather([torch.empty(2), torch.empty(2)], torch.ones(2))
        dist.all_gather_into_tensor(torch.empty(4), torch.ones(2))
        dist.barrier()

    return lambda turn: several()


@program(ranks=2)
def async_break():
    """A collective that is waited for later breaks the graph."""

    def several(x):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        dist.barrier()
        return x + 1

    run = torch.compile(several, backend="eager")
    return lambda turn: run(torch.ones(2))


@program(ranks=2)
def subgroup():
    """A group of one rank beside the group of all."""
    mine = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]

    @torch.compile(backend="eager")
    def both(x):
        dist.all_reduce(x, group=mine)
        y = funcol.all_reduce(x.to(torch.bfloat16), "sum", mine)
        return funcol.all_reduce(y, "sum", dist.group.WORLD)

    def step(turn):
        dist.all_reduce(torch.ones(5), group=mine)
        both(torch.ones(4))

    return step


@program(ranks=2)
def gradient_collective():
    """A collective with a gradient: its backward has one as well."""

    @torch.compile(backend="aot_eager")
    def loss_of(x):
        y = funcol.all_gather_tensor_autograd(x * 2, 0, dist.group.WORLD)
        return y.square().sum()

    return lambda turn: loss_of(torch.ones(2, 3, requires_grad=True)).backward()


@program(ranks=2)
def ranks_differ():
    """Two branches by rank, one of which prints."""

    def uneven(x):
        if dist.get_rank() == 0:
            x = x.sin()
        else:
            x = x.cos()
            print(end="")
        dist.all_reduce(x)
        return x

    run = torch.compile(uneven, backend="aot_eager")
    return lambda turn: run(torch.ones(4))


@program(ranks=2)
def one_rank_recompiles():
    """The batch of the last rank is short in the second turn."""

    @torch.compile(backend="eager")
    def scaled(x):
        return (x * 3).relu()

    def step(turn):
        last = dist.get_rank() == dist.get_world_size() - 1
        scaled(torch.ones(4 - (last and turn == 1)))

    return step


@program(ranks=2)
def tensor_parallel_block():
    """A transformer block with a collective in each half, a disabled report, and one rank that prints."""

    class Attention(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            y = self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
            dist.all_reduce(y)
            return y

    class Layer(nn.Module):
        def __init__(self, d=16):
            super().__init__()
            self.attention, self.norm = Attention(d), nn.LayerNorm(d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x):
            x = x + self.attention(x)
            h = F.gelu(self.up(self.norm(x)))
            if dist.get_rank() == 0:
                print(end="")
            h = self.down(h)
            dist.all_reduce(h)
            return x + h

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
                hidden(x)
            return x.square().mean()

    net = torch.compile(Net(), backend="aot_eager")
    return lambda turn: net(torch.ones(2, 4, 16))


# --- DDP, FSDP2, DTensor ---


@program(turns=5)
def ddp():
    """A compiled DDP model of one rank."""
    net = DDP(small_net())
    run, opt = torch.compile(net, backend="aot_eager"), torch.optim.SGD(net.parameters(), lr=0.1)

    def step(turn):
        run(batch()).sum().backward()
        opt.step()
        opt.zero_grad()

    return step


@program(ranks=2, turns=4)
def ddp_split():
    """DDP cuts the graph at its buckets."""

    class Net(nn.Module):
        def __init__(self, d=512):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

        def forward(self, x):
            x = F.relu(self.a(x))
            x = F.relu(self.b(x))
            x = self.c(x)
            return x.sum()

    run = torch.compile(DDP(Net(), bucket_cap_mb=1), backend="aot_eager")
    return lambda turn: run(torch.ones(4, 512)).backward()


@program(ranks=2, turns=4)
def ddp_metrics():
    """A DDP model whose loss takes a number out of a tensor."""

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            distance = self.linear(x).abs().mean()
            return distance * 2, distance.item()

    run = torch.compile(DDP(Policy()), backend="aot_eager")
    return lambda turn: run(batch())[0].backward()


@program(turns=5)
def sharded():
    """FSDP2 around layers of one rank, the model compiled."""
    net = small_net()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    net.compile(backend="aot_eager")
    return lambda turn: net(batch()).sum().backward()


class Residual(nn.Module):
    """A block for FSDP2."""

    def __init__(self, d=8):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        h = self.norm(x)
        h = F.gelu(self.up(h))
        return x + self.down(h)


@program(ranks=2, turns=4)
def fsdp_blocks():
    """FSDP2 around compiled blocks."""
    net = nn.Sequential(Residual(), Residual())
    for block in net:
        block.compile(backend="aot_eager")
        fully_shard(block)
    fully_shard(net)
    return lambda turn: net(batch()).square().mean().backward()


@program(ranks=2, turns=4)
def fsdp_whole():
    """FSDP2 around blocks, and the model compiled: its hooks break the graph."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Residual(), Residual()

        def forward(self, x):
            return self.second(self.first(x))

    net = Net()
    fully_shard(net.first)
    fully_shard(net.second)
    fully_shard(net)
    net.compile(backend="aot_eager")
    return lambda turn: net(batch()).square().mean().backward()


@program(ranks=2)
def dtensor():
    """A DTensor in a compiled function, replicated again at its end."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    @torch.compile(backend="aot_eager")
    def doubled(x):
        return (x * 2).sum(0).redistribute(mesh, [Replicate()]).to_local()

    whole = DTensor.from_local(torch.ones(4, 3), mesh, [Shard(0)])
    return lambda turn: doubled(whole)


@program(turns=5)
def left_dtensor():
    """A tensor becomes a DTensor and a tensor again, with gradients."""
    net, mesh = small_net(), init_device_mesh("cpu", (1,))

    @torch.compile(backend="aot_eager")
    def gathered(x):
        return net(DTensor.from_local(net(x), mesh, [Shard(0)]).full_tensor())

    return lambda turn: gathered(batch()).sum().backward()
