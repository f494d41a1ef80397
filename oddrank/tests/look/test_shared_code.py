"""One layer that breaks splits all of its class: said where the record has it, and nowhere else."""

from __future__ import annotations

import functools
import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oddrank.look import page, summary
from oddrank.look.function import look
from oddrank.look.shared_code import splits
from oddrank.record import Compile, Mark, Range, Tables
from torch import nn

DISABLED = "Skip calling `torch.compiler.disable()`d function hidden"
PRINT = "Failed to trace builtin operator print"
CALLERS = (("train.py", 90, "<module>"), ("torch/nn/modules/module.py", 1789, "_call_impl"))
OUT = (*CALLERS, ("train.py", 60, "Net.forward"), ("torch/nn/modules/module.py", 1789, "_call_impl"))


def compiled(id_, func, line, broke=False, resume=0, chain=OUT):
    return Compile(
        0, id_, "train.py", line, func, resume, chain, "graph", broke, operators=2, during=False, runs=1
    )


# as torch 2.13 compiled and ran the programs below, whose Block.forward calls Out.forward
BLOCK = compiled("1/1", "Block.forward", 38, broke=True, chain=CALLERS)
WHOLE_BLOCK = compiled("1/0", "Block.forward", 38, chain=CALLERS)
BLOCK_REST = compiled("4/0", "Block.forward", 39, resume=39)
BROKEN_OUT = compiled("2/0", "Out.forward", 26, broke=True)
OUT_REST = compiled("3/0", "Out.forward", 29, resume=29)
WHOLE_OUT = compiled("2/1", "Out.forward", 26)
PLAIN = compiled("5/0", "plain", 18, chain=(*OUT, ("train.py", 39, "Block.forward")))
# called by a function that stands between, as one that `torch.compiler.disable(recursive=False)` made
PLAIN_BELOW = replace(PLAIN, chain=(*PLAIN.chain, ("train.py", 30, "Out.forward")))
NOISY = replace(PLAIN, id="5/1", broke=True)
HELPER = compiled("6/0", "helper", 12)
OTHER_OUT = compiled("2/2", "Out.forward", 26, broke=True)  # which breaks in `helper`, at another line

PRINTS = [BLOCK, BROKEN_OUT, OUT_REST, BLOCK_REST]
QUIET = [BLOCK, WHOLE_OUT, BLOCK_REST]
HIDDEN = [BLOCK, BROKEN_OUT, BLOCK_REST]
CALLS_PLAIN = [BLOCK, BROKEN_OUT, PLAIN, BLOCK_REST]
CALLS_BELOW = [BLOCK, BROKEN_OUT, PLAIN_BELOW, BLOCK_REST]
NOT_COMPILED = [BLOCK, WHOLE_OUT, BROKEN_OUT, OUT_REST, BLOCK_REST]  # the break comes in a later call
CALLS_NOISY = [BLOCK, BROKEN_OUT, NOISY, BLOCK_REST]
CALLS_HELPER = [BLOCK, HELPER, BLOCK_REST]
BREAKS_ELSEWHERE = [BLOCK, OTHER_OUT, HELPER, BLOCK_REST]
WHOLE = [WHOLE_BLOCK]


def record(reason, *steps):
    """The tables of steps, each of which is a list of calls, which are lists of what ran."""
    made = Tables(profiled={0: len(steps)})
    inside = (("train.py", 29, "Out.forward"),)
    for id_, func, line, chain in (
        ("1/1", "Block.forward", 39, inside),
        ("2/0", "Out.forward", 29, ()),
        ("2/2", "Out.forward", 28, (("train.py", 13, "helper"),)),
    ):
        made.marks.append(Mark(0, id_, "train.py", line, func, "break", name=reason, chain=chain))
    for number, step in enumerate(steps):
        for place, row in enumerate(row for call in step for row in call):
            known = [one.id for one in made.compiles]
            if row.id not in known:
                made.compiles.append(row)
            start = 1000.0 * number + place
            made.ranges.append(Range(0, number, "region", row.id, start, start + 1, compile=row.id))
    return made


@pytest.mark.parametrize(
    ("reason", "calls", "said"),
    [
        (PRINT, [*[QUIET] * 3, PRINTS, *[QUIET] * 4],
         ["Block.forward runs in pieces for this break in all 8 calls", "7 of these calls do not", "but the 4th"]),
        (PRINT, [PRINTS, *[QUIET] * 7], ["all 8 calls", "but the 1st"]),  # no whole code was ever compiled
        (PRINT, [WHOLE, *[QUIET] * 6, PRINTS], ["in 7 of 8 calls", "6 of these calls do not", "but the 8th"]),
        (DISABLED, [*[CALLS_PLAIN] * 7, HIDDEN],
         ["Block.forward and Out.forward run in pieces", "7 of these calls do not", "but the 8th"]),
        (DISABLED, [*[HIDDEN] * 7, CALLS_PLAIN], ["1 of these calls does not run what torch breaks at. It shares"]),
    ],
)  # fmt: skip
def test_calls_that_break_for_another_one_are_counted(reason, calls, said):
    (split,) = splits(record(reason, calls, calls))
    assert all(one in split.said("step") for one in said), split.said("step")
    assert split.place == "train.py:29 (Out.forward)" and "a class of their own" in split.fix


@pytest.mark.parametrize(
    ("reason", "steps"),
    [
        (PRINT, [[PRINTS] * 8] * 2),
        (DISABLED, [[HIDDEN] * 8] * 2),
        (PRINT, [[PRINTS]] * 2),  # a single layer
        (PRINT, [[PRINTS], [QUIET]]),  # the same, which prints now and then
        (PRINT, [[PRINTS, QUIET], [QUIET, PRINTS]]),
        (PRINT, [[QUIET] * 8] * 2),  # it does not print in these steps
        (DISABLED, [[*[CALLS_BELOW] * 7, HIDDEN]] * 2),
        (PRINT, [[*[CALLS_PLAIN] * 7, HIDDEN]] * 2),  # of a print that breaks, what comes next says nothing
        (PRINT, [[*[NOT_COMPILED] * 7, PRINTS]] * 2),
        (PRINT, [[*[CALLS_HELPER] * 7, PRINTS]] * 2),
        (PRINT, [[*[BREAKS_ELSEWHERE] * 7, PRINTS]] * 2),
        (DISABLED, [[*[CALLS_NOISY] * 7, HIDDEN]] * 2),
        (PRINT, [[*[WHOLE] * 7, PRINTS]] * 2),  # the odd layer has a class of its own
    ],
)  # fmt: skip
def test_calls_that_may_have_to_break_are_not(reason, steps):
    assert splits(record(reason, *steps)) == []


# --- the same of real programs: eight layers of one class behind a compiled network ---

SIZE, LAYERS, ODD = 8, 8, 3


@torch.compiler.disable
def hidden(x):
    return x * 2


def plain(x):
    return x * 2


class Out(nn.Module):
    def __init__(self, verbose, call):
        super().__init__()
        self.linear, self.verbose, self.call = nn.Linear(16, SIZE, bias=False), verbose, call

    def forward(self, x):
        y = self.linear(x)
        if self.verbose:
            print(end="")
        return self.call(y)


class Block(nn.Module):
    def __init__(self, verbose=False, call=plain):
        super().__init__()
        self.up, self.out = nn.Linear(SIZE, 16), Out(verbose, call)

    def forward(self, x):
        return x + self.out(torch.tanh(self.up(x)))


class OddBlock(Block):
    pass


class Net(nn.Module):
    def __init__(self, odd, others):
        super().__init__()
        self.layers = nn.ModuleList(odd() if i == ODD else others() for i in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def train(odd, others):
    torch._dynamo.reset()
    net = Net(odd, others)
    call = torch.compile(net, backend="aot_eager")
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(5):
        call(torch.ones(4, SIZE, requires_grad=True)).square().mean().backward()
        opt.step()
        opt.zero_grad()


VERBOSE, HIDDEN_CALL = functools.partial(Block, verbose=True), functools.partial(Block, call=hidden)


@pytest.mark.parametrize(
    ("odd", "others", "at", "breaks"),
    [
        (VERBOSE, Block, 'print(end="")', 9),
        (HIDDEN_CALL, Block, "return self.call(y)", 16),
        (functools.partial(OddBlock, call=hidden), Block, "", 2),  # a class of its own has code of its own
        (HIDDEN_CALL, HIDDEN_CALL, "", 16),
    ],
)
def test_one_odd_layer_of_eight_is_said_with_its_break(alone, odd, others, at, breaks):
    found = look(alone, train, odd, others)
    text, body = summary.text(found), page.html(found).partition("<h2>The strip of one")[0]
    assert found.counts["breaks"].tolist() == [breaks]
    if not at:
        assert "in pieces" not in text + body and "class of their own" not in text + body
        return
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.strip() == at)
    for said in (text, html.unescape(re.sub("<[^>]+>", " ", body))):
        told = said.partition(f"test_shared_code.py:{number} (Out.forward)")[2]
        assert re.search(r"Block\.forward .*in pieces for this break in all 8 calls of a step", told), said
        assert "7 of these calls do not run what torch breaks at (all but the 4th)" in told
        assert "give those a class of their own" in told
