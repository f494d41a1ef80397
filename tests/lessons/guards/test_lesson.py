"""Lesson 09's rules outside of its examples: other blocks, arguments and odd shapes; the remedies of its exercise."""

from __future__ import annotations

import inspect

import lesson_cells
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course.guards import figures
from course.guards.exercises import SERVED
from course.guards.exercises.served import RIGHT
from course.shared.jobs import job_with
from labkit.ranks.output import quiet_stderr

LESSON = "09_guards_and_shapes"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    ids = ("guards-12", "guards-15", "guards-24", "guards-26", "guards-28", "guards-30", "guards-32")
    space = lesson_cells.definitions(LESSON, "guards-parameters", *ids)
    space |= {"quiet_stderr": quiet_stderr}  # in place: it is what the functions see
    return space


def test_the_map_says_where_ranks_differ():
    rows = [
        {"ranks": 2, "rank": r, "policy": "default", "dimension": name, "step": i, "value": str(i), "state": state}
        for r in (0, 1)
        for name in ("batch", "dtype")
        for i, state in enumerate(["first compile", "gave up" if name == "dtype" and r == 0 else "reused"])
    ]  # fmt: skip
    said = figures.sweep_matrix(pd.DataFrame(rows), "gloo · cpu").summary
    assert "AND THE RANKS DIFFER" in said and "1 end in giving up" in said


class Wide(nn.Module):
    """Another block: another width, the index in another place, and gradients."""

    def __init__(self, layer, width=24):
        super().__init__()
        self.layer, self.up = layer, nn.Linear(16, width)

    def forward(self, x):
        return x + torch.relu(self.up(x)).mean(-1, keepdim=True) * (self.layer + 2)


def test_other_blocks_share_one_limit_and_what_lifts_it(ranks, lesson):
    """Lesson 09, section 4, with 20 blocks; a block that differs in its weights alone shares all versions."""

    def with_tensor(i):
        made = Wide(i)
        made.layer = torch.tensor(i)
        return made

    def drilled(prepare="each", kind=Wide, **config):
        return ranks.run(lesson["tried"], lesson[prepare], kind, layers=20, **config).same()

    beyond = list(range(9, 21))
    assert drilled() == {"versions": 8, "in eager": beyond}
    assert drilled(kind=lambda i: Wide(3)) == {"versions": 1, "in eager": []}
    assert drilled(kind=with_tensor) == {"versions": 1, "in eager": []}
    assert drilled("outside") == {"versions": 1, "in eager": []}
    assert drilled(recompile_limit=12) == {"versions": 12, "in eager": beyond[4:]}
    assert drilled(recompile_limit=20, accumulated_recompile_limit=10)["in eager"] == beyond[2:]
    assert drilled("isolated", accumulated_recompile_limit=10) == {"versions": 10, "in eager": beyond[2:]}


@pytest.mark.parametrize(
    ("asked", "compiles"),
    [({"guard_collectives": True, "cached": False}, 2), ({"warm": (4, 6)}, 2), ({"lengths": (6, 6, 6)}, 1)],
    ids=["guard collectives, no cache", "warmed up", "from the first call on"],
)
def test_both_ranks_compile_where_none_waits_for_the_other(ranks, lesson, asked, compiles):
    """Equally often, and each later compile takes its time on both: on no rank does the cache have the graph."""
    for one in ranks.run(lesson["odd_call"], 1.0, timeout_s=60, **asked).values():
        took = [span["end"] - span["start"] for span in one["spans"] if span["kind"] == "compile"]
        assert one["ended"] == "right" and len(took) == compiles
        assert all(seconds >= 1.0 for seconds in took[1:])


def times_by_closure(n):
    return lambda t: t * n


def letters(lesson, function, arguments, **options):
    """What the calls of a compiled function did; each call's arguments, and its input, by name."""
    calls = ((given.pop("x", torch.ones(4, 8)), given, torch.no_grad) for given in arguments)
    states = lesson["states"](function, calls, **options)
    return "".join(lesson["LETTERS"].get(state, f" {state}") for state in states)


def test_a_new_lambda_fits_by_what_it_captures(lesson):
    def act(x, f):
        return f(x) + 1

    makes = {
        "nothing": lambda n: lambda t: t.relu(),
        "a number, by closure": times_by_closure,
        "a default argument": lambda n: lambda t, n=n: t * n,
        "a string": lambda n: (lambda word: lambda t: t * len(word))("a" * n),
    }
    found = {
        name: letters(lesson, act, [{"f": make(n)} for n in range(2, 13)]) for name, make in makes.items()
    }
    each = "1RRRRRRRXXX"
    assert found == {
        "nothing": "1..........",
        "a number, by closure": "1D.........",
        "a default argument": each,
        "a string": each,
    }


def test_whether_a_float_becomes_a_symbol_depends_on_the_operator(lesson):
    takes = {
        "dropout": lambda x, v: F.dropout(x, v) * 0,
        "attention": lambda x, v: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=v),
        "leaky_relu": F.leaky_relu,
        "clamp": lambda x, v: x.clamp(max=v),
    }
    values = [0.05 * n for n in range(1, 12)]
    found = {
        name: letters(lesson, lambda x, v, take=take: take(x, v) + 1, [{"v": v} for v in values])
        for name, take in takes.items()
    }
    each, once = "1RRRRRRRXXX", "1D........."
    assert found == {"dropout": each, "attention": each, "leaky_relu": once, "clamp": once}


def test_mark_unbacked_needs_every_input_of_the_length(lesson):
    linear, mark = nn.Linear(8, 8), lesson["mark_unbacked"]

    def block(x):
        h = F.layer_norm(linear(x), (8,))
        h = F.scaled_dot_product_attention(h[None], h[None], h[None], is_causal=True)[0]
        return torch.softmax(h @ h.T, -1) @ h

    def pairs(marked):
        for n in (4, 5, 1, 7, 0, 2):
            given = {name: torch.ones(n, 8) for name in ("x", "y")}
            for name in marked:
                mark(given[name], 0)
            yield given

    def add(x, y):
        return x + y

    found = {
        marked: letters(lesson, add, pairs(marked), fullgraph=True) for marked in ((), ("x",), ("x", "y"))
    }
    new = {marked: len(states.replace(".", "")) for marked, states in found.items()}
    assert new == {(): 4, ("x",): 4, ("x", "y"): 1}
    alone = [{"x": given["x"]} for given in pairs("x")]
    assert letters(lesson, block, alone, fullgraph=True) == "D....."
    alone = [{"x": given["x"]} for given in pairs("x")]
    assert letters(lesson, lambda x: x.chunk(2)[0], alone, fullgraph=True) == " UserError"


# --- the served model: each remedy that works, tried ---

LATER = (7, 33, 1, 50, 64, 2)
MARKS = {"mark_unbacked": torch._dynamo.decorators.mark_unbacked, "mark_dynamic": torch._dynamo.mark_dynamic}
# versions with each remedy that works, rank 1's; of forward, lengths make three (16, 24 as a symbol, 1)
VERSIONS = {
    "embed": {"warm up": 3, "mark_dynamic": 2, "mark_unbacked": 1, "a fixed size": 1},
    "forward": {"a tensor": 3, "allow_unspec_int_on_nn_module": 4, "isolate_recompiles": 30},
    "attend": {"a fixed size": 1},
    "head": {"warm up": 2, "wait first": 1},
}


def versions_of_served(remedies, lengths):
    """On a rank: versions that the requests of the log compile, and those of later ones, by function."""
    names = job_with(SERVED.with_name("served_model.py.txt"), 1, "")
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = {name: inspect.unwrap(names[name]) for name in ("embed", "attend", "head")}
    for name, function in compiled.items():
        names[name] = torch.compile(function, backend=backend)
    table, past, counts = torch.randn(64, 32), [], {name: [0, 0] for name in (*compiled, "forward")}
    blocks = [names["Block"](i) for i in range(10)]
    options = {}
    if remedies.get("forward") == "a tensor":
        for block in blocks:
            block.layer = torch.tensor(block.layer)
    if remedies.get("forward") == "isolate_recompiles":
        options["isolate_recompiles"] = True
    for block in blocks:
        block.compile(backend=backend, **options)
    switch = remedies.get("forward") == "allow_unspec_int_on_nn_module"
    whole = torch.zeros(16, 32)

    def counted(name, call, later):
        before = len(made)
        value = call()
        counts[name][later] += len(made) - before
        return value

    def through(h):
        for block in blocks:
            h = block(h)
        return h

    with torch.no_grad(), quiet_stderr(), torch._dynamo.config.patch(allow_unspec_int_on_nn_module=switch):
        for i, length in enumerate((*names["LENGTHS"], *lengths)):
            later = int(i >= len(names["LENGTHS"]))
            tokens = torch.arange(length)
            if remedies.get("embed") == "a fixed size":
                tokens = torch.nn.functional.pad(tokens, (0, 64 - length))
            elif mark := MARKS.get(remedies.get("embed")):
                mark(tokens, 0)
            h = counted("embed", lambda t=tokens: names["embed"](t, table), later)
            h = h[:length] if len(h) > length else h
            query = counted("forward", lambda h=h: through(h), later).mean(0)
            given = whole if remedies.get("attend") == "a fixed size" else past
            counted("attend", lambda q=query, g=given: names["attend"](q, g), later)
            past.append(query)
            total = names["funcol"].all_reduce(query, "sum", names["dist"].group.WORLD)
            if remedies.get("head") == "wait first" or i % 2 == 0:
                total = names["funcol"].wait_tensor(total)
            counted("head", lambda t=total: names["head"](t, 0.5), later)
    return counts


def test_the_remedies_that_the_check_accepts_take_the_fewest_versions(ranks):
    plain = ranks.run(versions_of_served, {}, LATER).same()
    assert plain == {"embed": [3, 0], "forward": [8, 0], "attend": [6, 2], "head": [2, 0]}
    for function, takes in VERSIONS.items():
        for remedy, versions in takes.items():
            found = ranks.run(versions_of_served, {function: remedy}, LATER).same()[function]
            assert found == [versions, 0], (function, remedy)
        assert RIGHT[function][2] == {remedy for remedy, n in takes.items() if n == min(takes.values())}
