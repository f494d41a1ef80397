"""Guards: what compiled code depends on, what makes it compile again, and where Dynamo gives up."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters

from labkit.ranks.output import quiet_stderr
from ledger.bench import Bench
from ledger.graphs import Graphs, first_line
from ledger.trial import NotThere, Seen, judge, part

LIMIT = 8  # torch._dynamo.config.recompile_limit
LENGTHS = range(2, 14)


def ones(rows):
    return (torch.ones(rows, 3),)


def symbols(graph) -> list[list[bool]]:
    """For each tensor input of a graph: which of its sizes are symbols."""
    inputs = [node.meta.get("example_value") for node in graph.graph.nodes if node.op == "placeholder"]
    return [[isinstance(n, torch.SymInt) for n in value.shape] for value in inputs if hasattr(value, "shape")]


def called(function, calls, *, mark=None, before=None, config=None, **options) -> Seen:
    """Compile a function and call it: graphs so far and compiled graphs that ran, call by call."""
    seen: Seen = {"graphs": [], "ran": [], "same": True, "error": "", "wrong": ""}
    backend = Graphs()
    with torch._dynamo.config.patch(config or {}), torch.no_grad(), quiet_stderr():
        compiled = torch.compile(function, backend=backend, **options)
        for call in calls:
            arguments = before(call) if before else call
            if mark:
                mark(*arguments)
            backend.ran = 0
            try:
                y = compiled(*arguments)
            except Exception as error:
                seen |= {"error": type(error).__name__, "wrong": str(error)[:400]}
                break
            seen["same"] &= torch.equal(y, function(*arguments))
            seen["graphs"].append(len(backend.dynamo))
            seen["ran"].append(backend.ran)
    seen["symbols"] = [symbols(graph) for graph in backend.dynamo]
    torch._dynamo.reset()
    return seen


def scaled(x, n=2):
    return x.sin() * n + n


def with_size(x):
    return x.sin() * x.shape[0]


# --- the first compile ---

SCALE = 2


def branch(x, flag):
    return x.sin() if flag else x.cos()


def reads_a_global(x):
    return x.sin() * SCALE


def set_global(value, *rest):
    globals()["SCALE"] = value
    return (torch.ones(4), *rest)


def first_compile(bench: Bench) -> Seen:
    x = torch.ones(4)
    seen = {
        "size": called(with_size, [ones(4), ones(4), ones(5)]),
        "int": called(scaled, [(x, 3), (x, 3), (x, 4)]),
        "float": called(scaled, [(x, 0.5), (x, 0.5), (x, 0.25)]),
        "bool": called(branch, [(x, True), (x, True), (x, False)]),
        "global": called(reads_a_global, [0.5, 0.5, 0.25], before=set_global),
    }
    return {name: {"graphs": one["graphs"], "same": one["same"]} for name, one in seen.items()}


def choice(x, flag):
    return torch.where(flag, x.sin(), x.cos())


def first_compile_of_tensors(bench: Bench) -> Seen:
    """The same values as tensors, and the size as a symbol from the start."""
    x, two, three = torch.ones(4), torch.tensor(2.0), torch.tensor(3.0)
    seen = {
        "size": called(with_size, [ones(4), ones(4), ones(5)], dynamic=True),
        "int": called(scaled, [(x, torch.tensor(3)), (x, torch.tensor(3)), (x, torch.tensor(4))]),
        "float": called(scaled, [(x, two), (x, two), (x, three)]),
        "bool": called(choice, [(x, torch.tensor(flag)) for flag in (True, True, False)]),
        "global": called(reads_a_global, [two, two, three], before=set_global),
    }
    return {name: {"graphs": one["graphs"], "same": one["same"]} for name, one in seen.items()}


@judge(first_compile, counter=first_compile_of_tensors)
def first_compile_specializes(seen):
    said = ", ".join(f"{name} {one['graphs']}" for name, one in seen.items())
    for name, words in (
        ("size", "a size"),
        ("int", "an int"),
        ("float", "float"),
        ("bool", "bool argument"),
        ("global", "a global number"),
    ):
        again = seen[name]["graphs"] == [1, 1, 2]
        yield part(words, again, f"graphs after a value, the same and another: {said}")
    yield part("result is eager's", all(one["same"] for one in seen.values()))


# --- what varies after that ---


def rank_sizes(rows) -> Seen:
    return called(with_size, [ones(n) for n in rows])


def two_or_more(found) -> bool:
    graphs = found["graphs"]
    return graphs[:3] == [1, 1, 2] and set(graphs[2:]) == {2}


ROWS = (4, 4, 5, 6, 2, 3, 9)


def sizes_vary(bench: Bench) -> Seen:
    ranks = list(bench.run(rank_sizes, ROWS))
    return {"graphs": [one["graphs"] for one in ranks], "symbols": ranks[0]["symbols"]}


def static_sizes(rows) -> Seen:
    return called(with_size, [ones(n) for n in rows], dynamic=False)


def sizes_stay_static(bench: Bench) -> Seen:
    ranks = list(bench.run(static_sizes, ROWS))
    return {"graphs": [one["graphs"] for one in ranks], "symbols": ranks[0]["symbols"]}


@judge(sizes_vary, counter=sizes_stay_static)
def second_size_is_a_symbol(seen):
    said = f"graphs after {ROWS} rows, by rank: {seen['graphs']}; sizes that are symbols: {seen['symbols']}"
    second = [one[:3] == [1, 1, 2] for one in seen["graphs"]]
    symbol = seen["symbols"][:2] == [[[False, False]], [[True, False]]]
    yield part("compiles a second graph in which it is a symbol", all(second) and symbol, said)
    later = [set(one[2:]) == {2} for one in seen["graphs"]]
    yield part("later sizes of 2 and more compile nothing", all(later), said)
    yield part("on each rank", len({str(one) for one in seen["graphs"]}) == 1, said)


def size_one(bench: Bench) -> Seen:
    return called(with_size, [ones(n) for n in (4, 5, 6, 1, 0, 1, 7)])


def size_one_unbacked(bench: Bench) -> Seen:
    """A symbol that nothing may ask whether it is 1."""
    mark = lambda x: torch._dynamo.decorators.mark_unbacked(x, 0)  # noqa: E731
    return called(with_size, [ones(n) for n in (4, 5, 6, 1, 0, 1, 7)], mark=mark)


@judge(size_one, counter=size_one_unbacked)
def sizes_zero_and_one(seen):
    graphs = seen["graphs"]
    grew = [after - before for before, after in zip([0, *graphs], graphs, strict=False)]
    yield part("1 and 0", grew == [1, 1, 0, 1, 1, 0, 0], f"graphs after 4, 5, 6, 1, 0, 1, 7 rows: {graphs}")


INTS, FLOATS = (3, 3, 4, 5, 6, 0, 1), (0.5, 0.5, 0.6, 0.7, 0.8, 0.0, 1.0)


def int_arguments(bench: Bench) -> Seen:
    return called(scaled, [(torch.ones(4), n) for n in INTS])


def int_arguments_static(bench: Bench) -> Seen:
    return called(scaled, [(torch.ones(4), n) for n in INTS], config={"automatic_dynamic_shapes": False})


@judge(int_arguments, counter=int_arguments_static)
def int_argument(seen):
    said = f"graphs after {INTS}: {seen['graphs']}"
    yield part("another value compiles a second graph", seen["graphs"][:3] == [1, 1, 2], said)
    yield part("all further values run", set(seen["graphs"][3:]) == {2}, said)


def float_arguments(bench: Bench) -> Seen:
    return called(scaled, [(torch.ones(4), n) for n in FLOATS])


def float_arguments_static(bench: Bench) -> Seen:
    return called(scaled, [(torch.ones(4), n) for n in FLOATS], config={"specialize_float": True})


@judge(float_arguments, counter=float_arguments_static)
def float_argument(seen):
    said = f"graphs after {FLOATS}: {seen['graphs']}"
    yield part("another value compiles a second graph", seen["graphs"][:3] == [1, 1, 2], said)
    yield part("all further values run", set(seen["graphs"][3:]) == {2}, said)


class Times(nn.Module):
    n = 1

    def forward(self, x):
        return x.sin() * self.n


VALUES = range(2, 13)


def kept_ints(bench: Bench) -> Seen:
    module = Times()

    def set_attribute(value):
        module.n = value
        return (torch.ones(4),)

    return {
        "global": called(reads_a_global, VALUES, before=set_global)["graphs"],
        "attribute": called(module, VALUES, before=set_attribute)["graphs"],
    }


def kept_floats(bench: Bench) -> Seen:
    """The same with floats, which become inputs of the graph."""
    module = Times()

    def set_attribute(value):
        module.n = value / 8
        return (torch.ones(4),)

    return {
        "global": called(reads_a_global, [n / 8 for n in VALUES], before=set_global)["graphs"],
        "attribute": called(module, VALUES, before=set_attribute)["graphs"],
    }


@judge(kept_ints, counter=kept_floats)
def int_that_is_no_argument(seen):
    each = [*range(1, LIMIT + 1)]
    said = f"graphs after {[*VALUES]}: global {seen['global']}, attribute {seen['attribute']}"
    yield part("a global int", seen["global"][:LIMIT] == each, said)
    yield part("an int attribute of an nn.Module", seen["attribute"][:LIMIT] == each, said)
    ends = all(set(seen[name][LIMIT:]) == {LIMIT} for name in ("global", "attribute"))
    yield part("up to recompile_limit", ends, said)


def loops(x):
    for _ in range(x.shape[0]):
        x = x.sin()
    return x


def loop_over_sizes(bench: Bench) -> Seen:
    return called(loops, [ones(n) for n in LENGTHS])


def without_a_loop(bench: Bench) -> Seen:
    return called(with_size, [ones(n) for n in LENGTHS])


@judge(loop_over_sizes, counter=without_a_loop)
def loop_over_a_size(seen):
    graphs = seen["graphs"]
    said = f"graphs after {len(LENGTHS)} lengths: {graphs}"
    yield part("a graph for each length", graphs[:LIMIT] == [*range(1, LIMIT + 1)], said)
    yield part("up to recompile_limit", set(graphs[LIMIT:]) == {LIMIT}, said)


# --- the limit ---


class Warnings(logging.Handler):
    """Keeps what Dynamo warns of."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, line):
        self.said.append(line.getMessage())

    def __enter__(self):
        self.logger = logging.getLogger("torch._dynamo.convert_frame")
        self.logger.addHandler(self)
        return self

    def __exit__(self, *error):
        self.logger.removeHandler(self)


def past_the_limit(**options) -> Seen:
    rows = [*LENGTHS, LENGTHS[0]]  # at the end a length that has a graph
    with Warnings() as warnings:
        found = called(loops, [ones(n) for n in rows], **options)
    hit = [re.search(r"hit config\.\w+ \(\d+\)", said) for said in warnings.said]
    return found | {"warned": [match[0] for match in hit if match]}


def at_the_limit(bench: Bench) -> Seen:
    return past_the_limit()


def limit_raised(bench: Bench) -> Seen:
    return past_the_limit(config={"recompile_limit": 100})


@judge(at_the_limit, counter=limit_raised)
def runs_in_python_at_the_limit(seen):
    ran, over = seen["ran"], seen["ran"][LIMIT:-1]
    said = f"compiled graphs that ran, call by call: {ran}; error: {seen['error'] or 'none'}"
    said += f"; warned: {seen['warned']}"
    yield part("runs in Python", len(over) > 0 and set(over) == {0}, said)
    yield part("without an error", seen["error"] == "" and seen["same"], said)
    yield part("one warning", len(seen["warned"]) == 1, said)
    yield part("graphs that exist are still used", ran[:LIMIT] == [1] * LIMIT and ran[-1] == 1, said)


def limit_is_an_error(bench: Bench) -> Seen:
    return {
        "setting": past_the_limit(config={"fail_on_recompile_limit_hit": True}),
        "fullgraph": past_the_limit(fullgraph=True),
    }


def limit_is_silent(bench: Bench) -> Seen:
    return {"setting": past_the_limit(), "fullgraph": past_the_limit()}


@judge(limit_is_an_error, counter=limit_is_silent)
def error_at_the_limit(seen):
    for name, words in (("setting", "fail_on_recompile_limit_hit=True"), ("fullgraph", "fullgraph=True")):
        found = seen[name]
        raised = found["error"] == "FailOnRecompileLimitHit" and len(found["graphs"]) == LIMIT
        yield part(
            words, raised, f"{words}: {found['error'] or 'no error'} after {len(found['graphs'])} calls"
        )


BLOCKS = 12


class Block(nn.Module):
    """A block that knows its place, as blocks with a cache of keys and values do."""

    def __init__(self, index):
        super().__init__()
        self.index = index

    def forward(self, x, cache):
        return x.sin() + cache[self.index]


def closure(index):
    def forward(x, cache):
        return x.sin() + cache[index]

    return forward


def one_by_one(make, index=lambda i: i, config=None, **options) -> list[int]:
    """How many compiled graphs run in the call of each of twelve blocks, compiled one by one."""
    backend, ran = Graphs(), []
    cache = [torch.ones(4) for _ in range(BLOCKS)]
    with torch._dynamo.config.patch(config or {}), torch.no_grad(), quiet_stderr():
        blocks = [torch.compile(make(index(i)), backend=backend, **options) for i in range(BLOCKS)]
        for block in blocks:
            backend.ran = 0
            block(torch.ones(4), cache)
            ran.append(backend.ran)
    torch._dynamo.reset()
    return ran


def blocks_of_one_class(bench: Bench) -> Seen:
    return {"blocks": one_by_one(Block), "closures": one_by_one(closure)}


def blocks_without_a_place(bench: Bench) -> Seen:
    """All have the same index, so that one graph serves all of them."""
    return {"blocks": one_by_one(Block, lambda i: 0), "closures": one_by_one(closure, lambda i: 0)}


@judge(blocks_of_one_class, counter=blocks_without_a_place)
def limit_is_of_the_code(seen):
    shared = [1] * LIMIT + [0] * (BLOCKS - LIMIT)
    for name, words in (("blocks", "blocks of one class"), ("closures", "closures of one def")):
        yield part(words, seen[name] == shared, f"graphs that ran in each of {BLOCKS} {name}: {seen[name]}")


def isolated(bench: Bench) -> Seen:
    try:
        return {"blocks": one_by_one(Block, isolate_recompiles=True)}
    except TypeError as error:
        if "isolate_recompiles" not in str(error):
            raise
        raise NotThere("torch.compile has no isolate_recompiles") from None


def not_isolated(bench: Bench) -> Seen:
    return {"blocks": one_by_one(Block)}


@judge(isolated, counter=not_isolated)
def isolate_recompiles(seen):
    all_ran = seen["blocks"] == [1] * BLOCKS
    yield part("a limit of its own", all_ran, f"graphs that ran in each of {BLOCKS} blocks: {seen['blocks']}")


def both_limits(bench: Bench) -> Seen:
    return past_the_limit(config={"recompile_limit": 100, "accumulated_recompile_limit": 4})


@judge(both_limits, counter=limit_raised)
def accumulated_limit(seen):
    ran = seen["ran"]
    said = f"graphs that ran with the limits 100 and 4: {ran}; warned: {seen['warned']}"
    yield part("at most accumulated_recompile_limit graphs", ran[:-1] == [1] * 4 + [0] * 8, said)
    yield part(
        "whatever recompile_limit says",
        seen["warned"] == ["hit config.accumulated_recompile_limit (4)"],
        said,
    )


# --- saying it in advance ---


def marked(bench: Bench) -> Seen:
    return called(with_size, [ones(n) for n in ROWS], mark=lambda x: torch._dynamo.mark_dynamic(x, 0))


def unmarked(bench: Bench) -> Seen:
    return called(with_size, [ones(n) for n in ROWS])


@judge(marked, counter=unmarked)
def mark_dynamic(seen):
    said = f"graphs after {ROWS} rows: {seen['graphs']}; sizes that are symbols: {seen['symbols']}"
    yield part("a symbol in the first graph", seen["symbols"][0] == [[True, False]], said)
    yield part("one graph", set(seen["graphs"]) == {1}, said)


def marked_and_looped(bench: Bench) -> Seen:
    return called(loops, [ones(4)], mark=lambda x: torch._dynamo.mark_dynamic(x, 0))


def maybe_marked_and_looped(bench: Bench) -> Seen:
    return called(loops, [ones(4)], mark=lambda x: torch._dynamo.maybe_mark_dynamic(x, 0))


@judge(marked_and_looped, counter=maybe_marked_and_looped)
def mark_dynamic_refuses(seen):
    said = f"{seen['error'] or 'no error'}: {seen['wrong'].partition('!')[0]}"
    yield part("ConstraintViolationError", seen["error"] == "ConstraintViolationError", said)
    yield part("names the dimension", "L['x'].size()[0]" in seen["wrong"], said)


SQUARES = tuple((torch.ones(n, n + 1),) for n in (4, 5, 6, 7))


def with_sources(**settings) -> Seen:
    settings = {f"compiler.config.{name}": value for name, value in settings.items()}
    for name in settings:
        if not hasattr(torch.compiler.config, name.rpartition(".")[2]):
            raise NotThere(f"torch.{name} is missing")
    with torch.compiler.config.patch({n.rpartition(".")[2]: v for n, v in settings.items()}):
        return called(with_size, [(x.clone(),) for (x,) in SQUARES])


def one_dimension_dynamic(bench: Bench) -> Seen:
    return with_sources(dynamic_sources="L['x']:0")


def both_dynamic(bench: Bench) -> Seen:
    return with_sources(dynamic_sources="L['x']")


@judge(one_dimension_dynamic, counter=both_dynamic)
def dynamic_sources_dimension(seen):
    first = seen["symbols"][0]
    said = f"sizes that are symbols in the first graph: {first}"
    yield part("dimension 0 a symbol in the first graph", first[0][0] is True, said)
    yield part("and dimension 1 not", first[0][1] is False, said)


def one_dimension_static(bench: Bench) -> Seen:
    return with_sources(static_sources="L['x']:0")


def none_static(bench: Bench) -> Seen:
    return with_sources()


@judge(one_dimension_static, counter=none_static)
def static_sources(seen):
    said = f"graphs after sizes (4, 5), (5, 6), (6, 7), (7, 8): {seen['graphs']}; symbols: {seen['symbols']}"
    later = seen["symbols"][1:]
    yield part("keeps dimension 0 static", all(one[0][0] is False for one in seen["symbols"]), said)
    yield part("each size compiles", seen["graphs"] == [1, 2, 3, 4], said)
    yield part("while dimension 1 becomes a symbol", bool(later) and all(one[0][1] for one in later), said)


def with_stance(stance) -> Seen:
    backend = Graphs()
    compiled = torch.compile(with_size, backend=backend)
    compiled(torch.ones(4, 3))
    ends = []
    with torch.compiler.set_stance(stance):
        for rows in (4, 5):
            try:
                compiled(torch.ones(rows, 3))
                ends.append("ran")
            except RuntimeError as error:
                ends.append(f"{first_line(error)} {str(error).splitlines()[-1].strip()}")
    torch._dynamo.reset()
    return {"ends": ends, "graphs": len(backend.dynamo)}


def recompile_forbidden(bench: Bench) -> Seen:
    return with_stance("fail_on_recompile")


def recompile_allowed(bench: Bench) -> Seen:
    return with_stance("default")


@judge(recompile_forbidden, counter=recompile_allowed)
def fail_on_recompile(seen):
    fits, other = seen["ends"]
    said = f"4 rows again: {fits}; 5 rows: {other}"
    yield part("would compile again raises a RuntimeError", other.startswith("RuntimeError"), said)
    yield part("names the guard", "expected 4, actual 5" in other, said)
    yield part("a call that fits runs", fits == "ran" and seen["graphs"] == 1, said)


# --- counters and logs ---


def broken(x):
    y = x.sin()
    print(end="")
    return y.cos()


def counted(rows) -> Seen:
    backend, each = Graphs(), []
    counters.clear()
    compiled = torch.compile(broken, backend=backend)
    for n in rows:
        compiled(torch.ones(n, 3))
        each.append([sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]])
    torch._dynamo.reset()
    return {"each": each}


def counted_with_a_recompile(bench: Bench) -> Seen:
    return counted((4, 4, 5))


def counted_without(bench: Bench) -> Seen:
    return counted((4, 4, 4))


@judge(counted_with_a_recompile, counter=counted_without)
def recompile_counts_its_breaks(seen):
    said = f"[breaks, graphs] after 4, 4 and 5 rows: {seen['each']}"
    first, again, other = seen["each"]
    yield part("counts its graph break again", [first[0], again[0], other[0]] == [1, 1, 2], said)
    yield part("its graphs", [first[1], again[1], other[1]] == [2, 2, 4], said)


LOGGED = """
import json, sys, torch
def program(x, n):
    return x.sin() * n
graphs = {}
def section(name, *calls):
    torch._dynamo.reset()
    made = graphs[name] = []
    def backend(graph, inputs):
        made.append(1)
        return graph.forward
    compiled = torch.compile(program, backend=backend)
    for warm, call in enumerate(calls):
        if warm == 1:  # the first call is part of no section
            print("==", name, file=sys.stderr, flush=True)
            made.clear()
        compiled(torch.ones(call[0], dtype=call[2]), call[1])
    print("== end", file=sys.stderr, flush=True)
a, b = torch.float32, torch.float64
section("control", (4, 3, a), (4, 3, b))
section("size", (4, 3, a), (5, 3, a))
section("int", (4, 3, a), (4, 9, a))
section("same", (4, 3, a), (4, 3, a), (4, 3, a))
print(json.dumps({name: len(made) for name, made in graphs.items()}))
"""


@functools.cache
def logs() -> Seen:
    """What TORCH_LOGS=recompiles,guards prints, by section; torch reads the variable as it is imported."""
    environment = os.environ | {"TORCH_LOGS": "recompiles,guards"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"  # a file: the log shows its lines
        file.write_text(LOGGED)
        done = subprocess.run(
            [sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=120
        )
    if done.returncode:
        raise RuntimeError(f"the program ended with {done.returncode}: {done.stderr[-300:]}")
    parts = re.split(r"^== (\w+)$", done.stderr, flags=re.M)[1:]
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    graphs = json.loads(done.stdout.splitlines()[-1])
    return {name: section(texts[name], graphs[name]) for name in ("control", "size", "int", "same")}


def section(text: str, graphs: int) -> Seen:
    failed = re.findall(r"\[__recompiles\]\s+- \d+/\d+: (.*)", text)
    guards = [line.partition("[__guards]")[2] for line in text.splitlines() if "[__guards]" in line]
    return {
        "graphs": graphs,
        "failed": [re.sub(r"\s+#.*", "", line).strip() for line in failed],
        "trees": sum("TREE_GUARD_MANAGER" in line for line in guards),
        "of_x": sum("TENSOR_MATCH" in line and "L['x']" in line for line in guards),
        "of_n": sum("EQUALS_MATCH" in line and "L['n']" in line for line in guards),
        "with_code": sum("# return x.sin() * n" in line for line in guards),
    }


def logged_changes(bench: Bench) -> Seen:
    return logs()


def logged_nothing(bench: Bench) -> Seen:
    """Calls for which all guards hold."""
    found = logs()
    return found | {"size": found["same"], "int": found["same"]}


@judge(logged_changes, counter=logged_nothing)
def recompiles_are_logged(seen):
    if not any("dtype" in line for line in seen["control"]["failed"]):
        raise ValueError("the reader does not find a failed guard in its control")
    size, number = seen["size"], seen["int"]
    said = f"failed guards: {size['failed']}, {number['failed']}"
    once = size["graphs"] == number["graphs"] == 1
    yield part("A call for which a guard fails compiles a graph more", once, said)
    names_size = any("expected 4, actual 5" in line for line in size["failed"])
    names_int = any("n == 3" in line for line in number["failed"])
    yield part("names the guard", names_size and names_int, said)
    yield part(
        "a call for which all guards hold compiles and prints nothing",
        not (seen["same"]["graphs"] or seen["same"]["failed"]),
        said,
    )


@judge(logged_changes, counter=logged_nothing)
def guards_are_logged(seen):
    control = seen["control"]
    if not control["trees"] or not control["with_code"]:
        raise ValueError("the reader does not find guards in its control")
    size = seen["size"]
    said = f"{size['trees']} trees of guards for {size['graphs']} graphs"
    said += f", {size['with_code']} guards with their line"
    yield part("each graph", size["trees"] == size["graphs"] == 1, said)
    yield part(
        "the guards", size["of_x"] == 1 and size["of_n"] == 1, f"on x: {size['of_x']}, on n: {size['of_n']}"
    )
    yield part("the line of code", size["with_code"] > 0, said)


# --- one rank of two ---


def own_sizes(rows_by_rank) -> Seen:
    return called(with_size, [ones(n) for n in rows_by_rank[torch.distributed.get_rank()]])


def one_rank_differs(bench: Bench) -> Seen:
    return {"graphs": [one["graphs"] for one in bench.run(own_sizes, ((4, 4, 4), (4, 5, 5)))]}


def both_ranks_alike(bench: Bench) -> Seen:
    return {"graphs": [one["graphs"] for one in bench.run(own_sizes, ((4, 5, 5), (4, 5, 5)))]}


@judge(one_rank_differs, counter=both_ranks_alike)
def one_rank_recompiles(seen):
    said = f"graphs by rank, call by call: {seen['graphs']}"
    yield part("that rank compiles again", seen["graphs"][1] == [1, 2, 2], said)
    yield part("the other does not", seen["graphs"][0] == [1, 1, 1], said)
