"""Regions of compiled code run again on the inputs that they had: as compiled, in eager, a last bit off, in float64.

Region by region, because torch's DebugMode sees nothing inside of a kernel of Inductor; where it replaces the compiled
code by an interpreter of the graph, it measures other code than the program ran.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Interpreter, Node

from oddrank import torch_names
from oddrank.files import write
from oddrank.look import replicas
from oddrank.look.agreement import CACHE, RANDOM, Region, beyond, excess
from oddrank.look.callables import line_of_stack
from oddrank.look.steps import Steps
from oddrank.look.values import compare, largest
from oddrank.look.values import leaves as tensors
from oddrank.record.guard_words import source

__all__ = ["TOLERANCES", "Call", "Replays", "measure", "nudge", "nudge_first", "read"]

MOST = 1 << 30  # bytes of inputs that are kept
NUDGES = 4  # runs of a region with other last bits
ALONE = 16  # operators that are compiled alone
STEP = 1e-3  # of a number, by which differences are taken
# of a gradient's size: as far as it may be from that of its forward, and as far as a wrong one is
HOLDS, BREAKS = 0.05, 0.5
# relative, as `torch.testing.assert_close` has them
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1.3e-6, torch.bfloat16: 1.6e-2, torch.float16: 1e-3}
_COMPILE = torch.compile  # look puts a wrapper in its place
Results = dict[str, torch.Tensor]
Code = Callable[..., Any]
Votes = Callable[[str], list[str | None]]


class Replays:
    """Keeps the inputs of regions in a run, and runs the regions again after its last recorded step.

    Args:
        steps: Which step it is.
        step: The step whose regions run again; of each region its first call does, too.
        rank: This process.
        path: The file for what was measured.
        votes: Asks all ranks for a text, in their common order; those of all ranks, None for one that is silent.
    """

    def __init__(self, steps: Steps, step: int, rank: int, path: Path, votes: Votes) -> None:
        self._steps, self._step, self._rank, self._path, self._votes = steps, step, rank, path, votes
        self._kept: list[tuple[Region, Call]] = []
        self._seen: set[tuple[str, bool]] = set()
        self._bytes = 0
        self._busy = False

    def listen(self) -> None:
        """Keep inputs from now on, and run the regions again when the last recorded step has ended."""
        torch_names.around_compiled(self._around)
        self._steps.done.append(self.run)

    def _around(self, compile_id: str, graph: GraphModule, backend: Any, compiled: Code) -> Code:
        def call(*args: Any) -> Any:
            self._keep(compile_id, graph, backend, compiled, args)
            return compiled(*args)

        return compiled if self._busy else call

    def _keep(self, compile_id: str, graph: GraphModule, backend: Any, compiled: Code, args: Any) -> None:
        step = max(self._steps.found, 1)
        if self._busy or step > self._step or (compile_id, step == self._step) in self._seen:
            return
        self._seen |= {(compile_id, step == self._step), (compile_id, False)}
        with contextlib.suppress(Exception):  # the program goes on
            call = Call(graph, backend, compiled, args, torch.is_grad_enabled())
            self._bytes += sum(one.nbytes for one, _ in call.given if isinstance(one, torch.Tensor))
            region = Region(self._rank, _title(graph), step)
            if self._bytes > MOST:
                call.given = None
                region.note = f"its inputs and those of regions before it are more than {MOST >> 20} MiB"
            self._kept.append((region, call))

    def run(self) -> None:
        """Run the regions again, once, and write what was measured."""
        if self._busy:
            return
        self._busy = True
        talking = json.dumps([region.name for region, call in self._kept if call.talks])
        agreed = len(set(self._votes(talking))) == 1
        rng, found = torch.get_rng_state(), []  # type: torch.Tensor, list[Region]
        for region, call in self._kept:
            if call.talks and not agreed:
                region.note = "it holds a collective, and ranks ran different regions"
            if region.note:
                found.append(region)
                continue
            votes = self._votes if call.talks else lambda said: [said]
            found += measure(call, region, votes, any(one.gap for one in found))
        torch.set_rng_state(rng)
        write(self._path, json.dumps([asdict(one) for one in found]).encode())


def read(folder: Path) -> list[Region]:
    """Read what the ranks of a run have measured.

    Raises:
        ValueError: A file is none of a rank's.
    """
    found = []
    for path in sorted(folder.glob("regions-*.json")):
        try:
            found += [Region(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{path} holds no regions of a rank: {error}") from None
    return found


class Call:
    """A graph with the code that a backend made of it, and the inputs of one call.

    Args:
        graph: The graph.
        backend: What made the code.
        compiled: The code.
        args: The inputs: they are copied.
        grad: Whether gradients are on.
    """

    def __init__(self, graph: GraphModule, backend: Any, compiled: Code, args: Any, grad: bool) -> None:
        self.graph, self.backend, self.compiled, self.grad = graph, backend, compiled, grad
        # each with whether it is a leaf of the program; others may be changed in place, and are no leaves here
        self.given: Any = [(_copied(one), not isinstance(one, torch.Tensor) or one.is_leaf) for one in args]
        self.names = [source(name) for name in torch_names.input_names(graph)]
        held = [replicas.local_part(one) for one in args if isinstance(one, torch.Tensor)]
        held = [one for one in held if _plain(one) and one.numel()]
        self.shares = len({one.untyped_storage().data_ptr() for one in held}) < len(held)
        self.talks = any(_talks(node) for node in graph.graph.nodes)
        devices = {one.device.type for one, _ in self.given if isinstance(one, torch.Tensor)}
        self._casts = [
            (one, torch.get_autocast_dtype(one)) for one in devices if torch.is_autocast_enabled(one)
        ]
        self.at: Results = {}  # outputs of the first run: the cosine of each is the gradient that comes to it

    @contextlib.contextmanager
    def casting(self) -> Iterator[None]:
        """Let autocast be as it was around the call."""
        with contextlib.ExitStack() as stack:
            for device, dtype in self._casts:
                stack.enter_context(torch.autocast(device, dtype))
            yield

    def run(self, code: Code, change: Callable[[Any], Any] = torch.Tensor.detach) -> Results:
        """Run some code of the graph on fresh inputs; returns outputs, inputs after it, and gradients of inputs.

        Args:
            code: What is called.
            change: Applied to each tensor before.
        """
        torch.manual_seed(0)
        with torch.set_grad_enabled(self.grad):
            leaves = [_leaf(one, change) for one, _ in self.given]
            wanted = {name: one for name, one in zip(self.names, leaves, strict=True) if _trained(one)}
            pairs = zip(leaves, self.given, strict=True)
            args = [one if leaf or not _trained(one) else one.clone() for one, (_, leaf) in pairs]
            after = {
                f"{name} afterwards": arg
                for name, leaf, arg in zip(self.names, leaves, args, strict=True)
                if isinstance(arg, torch.Tensor) and not (arg is leaf and _trained(arg))
            }
            with self.casting():
                made = {f"output {i}": one for i, (_, one) in enumerate(tensors(code(*args), ""))}
            found = {name: one.detach().clone() for name, one in (made | after).items()}
            self.at = self.at or {name: found[name] for name in made}
            ends = {name: one for name, one in made.items() if one.requires_grad}
            if ends and wanted:
                coming = [torch.cos(self.at[name]).to(one.dtype) for name, one in ends.items()]
                grads = torch.autograd.grad(
                    list(ends.values()), list(wanted.values()), coming, allow_unused=True
                )
                each = zip(wanted, grads, strict=True)
                found |= {f"the gradient of {name}": one.detach() for name, one in each if one is not None}
        return {name: replicas.local_part(one) for name, one in found.items()}


def measure(call: Call, region: Region, votes: Votes, told: bool = False) -> list[Region]:
    """Measure one region, and what explains it; also as it is with a setting that explains it.

    Args:
        call: The graph, its code and inputs.
        region: Where it ran.
        votes: As for `Replays`; ranks of a region with a collective decide together what runs.
        told: Whether a region before it differs: of rounding the first operator is enough.
    """
    try:
        base = _Eager(call, region)
        found = base.against(call.compiled)
        if "True" in votes(str(beyond(found))):
            # a choice, as of a largest element, turns over in some of them
            base.nudge(4 * NUDGES)
            found = base.against(call.compiled)
        rewritten = torch_names.rewritten_collectives(call.graph)
        found.rewritten = [f"dist.{one.call} at {line_of_stack(one.stack)}" for one in rewritten]
        if base.draws:
            found.draws = next(iter([_said(node) for node, _, draws in _nodes(call) if draws]), "")
            control = _unlike_forward(call, call.graph)
            if control < HOLDS and (unlike := _unlike_forward(call, call.compiled)) > BREAKS:
                found.unlike = unlike
        odd = "True" in votes(str(beyond(found)))
        every = [found]
        if odd:
            found.setting, settled = _setting(call, base, votes)
            every += [replace(settled, under=found.setting)] if found.setting == RANDOM else []
        if "True" in votes(str((odd or (found.gap > 0 and not told)) and not found.draws)):
            found.parts, found.operator = _parting(call, odd and not found.setting)
        return every
    except Exception as error:
        return [replace(region, note=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")]


class _Eager:
    """What a graph computes in eager: as it is, with the last bit of its inputs changed, and in float64.

    Args:
        call: The graph with its inputs.
        about: Where it ran.

    Attributes:
        draws: Whether it draws random numbers.
    """

    def __init__(self, call: Call, about: Region) -> None:
        self._call = call
        torch.manual_seed(0)
        before = _random()
        with torch_names.operators() as ran:
            self._as_is = call.run(call.graph)
        self.draws = _random() != before
        if call.shares and any(  # each has a copy of its own here
            _far(self._as_is[name], replicas.local_part(one.detach()))
            for name, (one, _) in zip((f"{each} afterwards" for each in call.names), call.given, strict=True)
            if name in self._as_is
        ):
            raise ValueError("it changes inputs that share memory")
        eps = max((torch.finfo(one).eps for one in ran.dtypes if one.is_floating_point), default=0.0)
        self._about = replace(about, eps=eps)
        self._nudged: list[Results] = []
        self.nudge(NUDGES)
        self._wide: Results = {}
        if not self.draws:  # in another dtype other numbers are drawn
            with contextlib.suppress(Exception), torch_names.operators(wide=True):  # some knows no float64
                self._wide = call.run(
                    call.graph, lambda one: one.double() if one.dtype in TOLERANCES else one
                )

    def nudge(self, times: int) -> None:
        """Change the last bit of its inputs so many times more, each time in other directions."""
        for seed in range(len(self._nudged), len(self._nudged) + times):
            self._nudged.append(self._call.run(self._call.graph, partial(nudge, seed=seed)))

    def against(self, code: Code) -> Region:
        """The result that is farthest beyond its rounding in some code of the graph."""
        found, every = self._call.run(code), [self._about]
        for name, eager in self._as_is.items():
            if name not in found or eager.dtype not in TOLERANCES:
                continue
            one = replace(self._about, of=name, tolerance=TOLERANCES[eager.dtype], size=largest(eager))
            one.gap = _far(found[name], eager)
            one.nudged = max(_far(nudged[name], eager) for nudged in self._nudged if name in nudged)
            if name in self._wide:
                one.compiled, one.eager = _far(found[name], self._wide[name]), _far(eager, self._wide[name])
            every.append(one)
        for name in sorted(self._as_is.keys() ^ found.keys()):
            where = "eager" if name in self._as_is else "compiled"
            every.append(replace(self._about, of=f"{name}, in {where} code only", gap=math.inf))
        return max(every, key=lambda one: (beyond(one), one.gap > one.tolerance * one.size, excess(one)))


def _unlike_forward(call: Call, code: Code) -> float:
    """How far the gradient of some code is from that of its forward, of its own size; 0 where nothing needs one.

    Finite differences of the forward, with one seed, along random directions of what needs a gradient.
    """
    apart = size = 0.0
    for seed in range(NUDGES):
        ahead, here, behind = (call.run(code, partial(_moved, by=by, seed=seed)) for by in (STEP, 0.0, -STEP))
        slope = 0.0
        for name, at in call.at.items():
            if name in ahead and at.is_floating_point():
                weight = torch.cos(replicas.local_part(at)).double()
                slope += float((weight * (ahead[name].double() - behind[name].double())).sum()) / (2 * STEP)
        for name, (one, _) in zip(call.names, call.given, strict=True):
            if (grad := here.get(f"the gradient of {name}")) is not None:
                each = (
                    grad.double() * (_moved(one, by=1.0, seed=seed) - _moved(one, by=0.0, seed=seed)).double()
                )
                slope, size = slope - float(each.sum()), size + float(each.square().sum())
        apart += slope**2
    return math.sqrt(apart / size) if size else 0.0


def _moved(tensor: torch.Tensor, by: float, seed: int) -> torch.Tensor:
    """What needs a gradient, changed by so much of each number, up or down; the same directions for each `by`."""
    if not tensor.requires_grad:
        return tensor.detach()
    some = torch.Generator().manual_seed(tensor.numel() + seed)
    signs = torch.randint(0, 2, tensor.shape, generator=some, dtype=torch.int8).to(tensor.device) * 2 - 1
    return tensor.detach() * (1 + by * signs)


def _setting(call: Call, base: _Eager, votes: Votes) -> tuple[str, Region]:
    """The way of compiling with which a region is within its rounding on all ranks, '' for none, and what it gives."""
    made: list[str] = []

    def backend(graph: GraphModule, inputs: Any) -> Any:
        made.append(name)
        return call.backend(graph, inputs)

    for name in (CACHE, RANDOM):
        fits, found = False, Region(0, "", 0)
        with (
            contextlib.suppress(Exception),
            torch_names.no_compile_caches() if name == CACHE else torch_names.inductor_random_as_eager(),
        ):
            again = GraphModule(call.graph, call.graph.graph)  # Dynamo knows the code of the other one
            found = base.against(_COMPILE(again, backend=backend, dynamic=False))
            fits = not beyond(found) and name in made
        if set(votes(str(fits))) == {"True"}:
            return name, found
    return "", Region(0, "", 0)


def _nodes(call: Call) -> Iterator[tuple[Node, list[Any], bool]]:
    """Run a graph in eager: each operator that makes floating-point numbers, its inputs, whether it draws random ones.

    To be taken to its end: operators may change the state of autocast.
    """
    walk = Interpreter(call.graph)
    walk.args_iter = iter([_leaf(one, torch.Tensor.detach) for one, _ in call.given])
    torch.manual_seed(0)
    for node in call.graph.graph.nodes:
        given, before = [_copied(walk.env[one]) for one in node.all_input_nodes], _random()
        with torch.no_grad(), call.casting():
            walk.env[node] = found = walk.run_node(node)
        if node.op.startswith("call_") and any(one.is_floating_point() for _, one in tensors(found, "")):
            yield node, given, _random() != before


def _parting(call: Call, odd: bool) -> tuple[str, str]:
    """The first operator that differs at all when it is compiled alone, and the first beyond its rounding.

    Args:
        call: The graph with its inputs.
        odd: Whether the second is looked for.
    """
    parts, operator, seen = "", "", set[str]()
    for node, given, draws in _nodes(call):
        shapes = [(tuple(one.shape), one.dtype) for one in given if isinstance(one, torch.Tensor)]
        key = f"{node.target} {shapes}"
        if draws or _talks(node) or key in seen or (operator if odd else parts) or len(seen) >= ALONE:
            continue
        seen.add(key)
        alone = _alone(call, node, given)
        parts = parts or (_said(node) if alone.gap else "")
        operator = operator or (_said(node) if odd and beyond(alone) else "")
    return parts, operator


def _alone(call: Call, node: Node, given: list[Any]) -> Region:
    """Measure one operator, compiled alone."""
    graph, found = torch.fx.Graph(), Region(0, "", 0)
    inner = {one: graph.placeholder(one.name) for one in node.all_input_nodes}
    graph.output((graph.node_copy(node, inner.__getitem__),))
    for one, value in zip(inner, given, strict=True):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.requires_grad_(bool(getattr(one.meta.get("example_value"), "requires_grad", False)))
    with contextlib.suppress(Exception), torch.enable_grad(), call.casting():
        single = GraphModule(call.graph, graph)
        compiled = _COMPILE(GraphModule(single, graph), backend=call.backend, dynamic=False)
        found = _Eager(Call(single, call.backend, compiled, given, call.grad), found).against(compiled)
    return found


def _random() -> list[bytes]:
    """The states of the generators that operators draw from."""
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]
    return [one.numpy().tobytes() for one in states]


def _said(node: Node) -> str:
    name = getattr(node.target, "__name__", str(node.target))
    where = line_of_stack(node.stack_trace or "")
    return f"{name} at {where}" if where else name


def _title(graph: GraphModule) -> str:
    """The line of the first operator of a graph that has one, and its number of operators."""
    ran = [node for node in graph.graph.nodes if node.op.startswith("call_")]
    places = [place for node in ran if (place := line_of_stack(node.stack_trace or ""))]
    where = f" at {places[0]}" if places else ""
    return f"{len(ran)} operators{f' from {places[0]} to {places[-1]}' if len(set(places)) > 1 else where}"


def _talks(node: Node) -> bool:
    return "c10d" in str(node.target) or "torch.distributed" in str(getattr(node.target, "__module__", ""))


def nudge(tensor: torch.Tensor, eps: float = 0.0, seed: int = 0) -> torch.Tensor:
    """Change floating-point numbers in the last bit, up or down; the same ones on every rank.

    Args:
        tensor: Of any dtype; others than floating-point ones stay. What a DTensor holds is changed in place.
        eps: The relative change, where it is more than the last bit.
        seed: Of the directions.
    """
    if (local := replicas.local_part(tensor)).dtype not in TOLERANCES:
        return tensor
    some = torch.Generator().manual_seed(local.numel() + seed)
    signs = torch.randint(0, 2, local.shape, generator=some, dtype=torch.int8).to(local.device) * 2 - 1
    made = local * (1 + signs * max(torch.finfo(local.dtype).eps, eps)).to(local.dtype)
    if local is tensor:
        return made
    local.copy_(made)  # a DTensor stays one
    return tensor


def nudge_first(steps: Steps, eps: float) -> None:
    """Change all parameters when the first step begins, and what compiled calls are given in it, in the last bit.

    Args:
        steps: Which step it is.
        eps: The relative change, where it is more than the last bit.
    """

    def begin() -> None:
        change(tensor for _, _, _, tensor, _ in replicas.everything())

    def call(args: Any, kwargs: Any) -> None:
        given = tensors([*args, *kwargs.values()], "")
        change(one for _, one in given if not isinstance(one, nn.Parameter))

    def change(found: Iterable[Any]) -> None:
        for tensor in found if steps.found == 1 else ():
            with contextlib.suppress(Exception), torch.no_grad():
                held = tensor.data
                if (made := nudge(held, eps)) is not held:
                    held.copy_(made)

    for code in (begin, call, change):
        torch_names.hide_from_dynamo(code.__code__, calls=True)
    steps.begins.append(begin)
    steps.given.insert(0, call)  # what others note is what the call gets


def _copied(one: Any) -> Any:
    """A copy of a tensor with its strides, which compiled code asks for; anything else as it is."""
    if not isinstance(one, torch.Tensor):
        return one
    with torch.no_grad():
        made = torch_names.copied_with_strides(one.detach()) if _plain(one) else one.detach().clone()
    return made.requires_grad_(one.requires_grad)


def _plain(one: torch.Tensor) -> bool:
    return type(one.data) is torch.Tensor and one.layout == torch.strided


def _leaf(one: Any, change: Callable[[Any], Any]) -> Any:
    if not isinstance(one, torch.Tensor):
        return one
    with torch.no_grad():
        made = change(_copied(one))
    return made.requires_grad_(one.requires_grad)


def _trained(one: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.requires_grad


def _far(a: torch.Tensor, b: torch.Tensor) -> float:
    return compare(a.double(), b.double()).absolute if a.shape == b.shape else math.inf
