"""What ranks recorded, compared without ranks: what they hold, send and keep, and records of another oddrank."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from oddrank.live.introspect import Collective
from oddrank.look import (
    checkpoints,
    function,
    gradients,
    look,
    page,
    replicas,
    rows,
    step_collectives,
    summary,
)
from oddrank.record import Tables
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from labkit.report import Report


def test_a_record_of_another_oddrank_is_refused_by_what_it_lacks(tmp_path):
    tables = rows.frames(Tables())
    tables |= {f"all_{part}": tables[part] for part in look.WHOLE}
    tables |= {name: pd.DataFrame([], columns=list(types)) for name, types in look.HELD.items()}
    about = {"rank": 0, "world_size": 1, "origin_ns": 0, "clock": "", look.RECORDED: 0}

    def saved(tables: dict[str, pd.DataFrame]) -> None:
        Report("rank-0", "train.py", "gloo · cpu", tables, provenance=about).save(tmp_path)

    saved(tables | {"calls": tables["calls"].drop(columns="group")})
    with pytest.raises(
        ValueError, match=r"rank-0\.json .* table calls lacks group: another version of oddrank"
    ):
        look.gather([tmp_path], tmp_path)
    saved({name: table for name, table in tables.items() if name != "asked"})
    with pytest.raises(ValueError, match="lacks the table asked"):
        look.read(tmp_path)
    saved(tables)
    look.gather([tmp_path], tmp_path)


def test_how_much_longer_a_recorded_step_took_is_of_the_slowest_rank_and_needs_later_steps():
    ranks = [
        dict(zip(look.TIMES, ([12.0, 9.0, 9.0], [4.0] * 5), strict=True)),
        dict(zip(look.TIMES, ([9.0, 9.0, 12.0], [6.0] * 5), strict=True)),
    ]
    (said,) = look._factor(ranks)
    assert said.startswith("a recorded step took 2.00 times as long as one after it: 12.00 ms")
    # one later step as slow, faster recorded ones, and two recorded steps tell nothing
    assert look._factor([one | {look.TIMES[1]: [6.0] * 4 + [9.0]} for one in ranks]) == []
    assert look._factor([one | {look.TIMES[1]: [24.0] * 5} for one in ranks]) == []
    assert look._factor([one | {look.TIMES[0]: [12.0, 12.0]} for one in ranks]) == []
    assert look._factor([one | {look.TIMES[1]: [6.0] * 4} for one in ranks]) == []
    assert look._factor([{}, {}]) == []


# --- collectives ---


def called(rank: int, op: str = "all_reduce", **more) -> dict:
    """A row of a rank's first collective."""
    row = {"rank": rank, "group": "1", "ranks": "0,1", "number": 1, "op": op, "tensors": "[2] float32"}
    return row | {"place": "", "owner": "", "bytes": 8} | more


EITHER = {"owner": "A or B"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([called(0), called(1)], []),
        ([called(0), called(1, "broadcast")], ["all_reduce [2] float32 on rank 0; broadcast [2] float32 on rank 1"]),
        ([called(0), called(1, tensors="[2] int64", place="a.py:3")], ["[2] int64 on rank 1 at a.py:3 (group 1)"]),
        # two groups of one name, of other ranks each; and one name for groups that share a rank
        ([called(0, ranks="0,3"), called(1, "broadcast", ranks="1,2")], []),
        (
            [called(0, ranks="0,3"), called(3, ranks="0,3"), called(2, ranks="0,2")],
            ["group 1 has other members: [0,2] on rank 2; [0,3] on rank 0 and 3"],
        ),
        # by its size a bucket is of one of two DDP modules, and the line tells them apart
        ([called(0, place="a.py:1", **EITHER), called(1, place="a.py:9", **EITHER)], ["averaged with those of the"]),
        ([called(0, place="a.py:1", **EITHER), called(1, place="a.py:1", **EITHER)], []),
    ],
)  # fmt: skip
def test_collectives_of_one_number_are_compared(rows, said):
    found = step_collectives.differing(pd.DataFrame(rows))
    assert len(found) == len(said) and all(part in one for part, one in zip(said, found, strict=True)), found


@pytest.mark.parametrize(("kept", "known"), [(3, False), (4, True)])
def test_bytes_are_not_known_where_the_recorder_may_have_lost_a_call(kept, known, monkeypatch):
    calls = [
        Collective("0", n, "all_reduce", ((2,),), ("float32",), "", True, time_ns=10 * n) for n in (1, 2, 3)
    ]
    monkeypatch.setattr(step_collectives.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(step_collectives.introspect, "collectives", lambda: calls)
    monkeypatch.setattr(step_collectives.introspect, "kept", lambda: kept)
    monkeypatch.setattr(step_collectives.torch_names, "group_members", lambda: {"0": (0, 1)})
    taken = step_collectives.take(0, 10)
    assert list(taken["number"]) == [1, 2, 3] and set(taken["bytes"]) == {8 if known else -1}
    # an older one is there still: none of the recorded steps is lost
    assert set(step_collectives.take(0, 11)["bytes"]) == {8}
    assert list(step_collectives.take(0, 11)["number"]) == [2, 3]


# --- tensors ---


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
)
def test_fingerprints_see_one_changed_element(dtype):
    one = torch.zeros(3, 7).to(dtype)
    other = one.clone()
    other[2, 6] = 1
    assert replicas.fingerprint(one) == replicas.fingerprint(one.clone()) != replicas.fingerprint(other)
    assert replicas.fingerprint(torch.zeros(0, dtype=dtype)) == "0" * 16


def gradient(*sums: float, kind: str = "to_local()", **more) -> list[dict]:
    """The rows of ranks of one gradient whose sketches are these numbers; of a parameter with `own` another kind."""
    row = {"kind": kind, "name": "w", "place": "a.py:3", "dimension": "tp", "number": 0, "tolerance": 1e-3}
    row |= {"ranks": ",".join(map(str, range(len(sums)))), "placements": "[Replicate()]", "own": ""} | more
    return [row | {"rank": rank, "sketch": json.dumps([5.0, one])} for rank, one in enumerate(sums)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (gradient(1.0, 1.0), ""),
        (gradient(1.0, 1.004), ""),  # within the tolerance of its largest norm
        (gradient(1.0, 1.006), "the gradient that comes back to to_local() is taken for replicated over dimension tp"),
        (gradient(float("nan"), 1.0), "to_local()"),
        (gradient(1.0, float("nan")), "to_local()"),
        (gradient(float("nan"), float("nan")), ""),
        (gradient(1.0, 2.0)[:1], ""),  # of one rank only
        ([*gradient(1.0, 2.0), *gradient(1.0, 2.0)], ""),  # two models share a name
        (gradient(1.0, 2.0, kind="parameter", own="[Replicate()]"), ""),  # its values will show it
        (gradient(1.0, 2.0, kind="parameter", own="[Shard(dim=0)]"), "only its own slice is used"),
    ],
)  # fmt: skip
def test_a_gradient_that_is_taken_for_replicated_is_compared(rows, said):
    found = gradients.wrong(pd.DataFrame(rows))
    assert len(found) == bool(said) and all(said in f"{one.said}; {one.why}" for one in found), found


@pytest.mark.parametrize(
    ("layers", "theirs", "sentence"),
    [
        ([2], {"0.weight": "module.0.weight", "0.bias": "module.0.bias"}, "loaded 0 of 2 keys"),
        ([2, 2], {"1.weight": "1._orig_mod.weight"}, "loaded 3 of 4 keys"),
        ([2], {"0.weight": "w", "0.bias": "b"}, "loaded 0 of 2 keys"),
        ([2], {"0.weight": "lora.weight"}, ""),  # another key, and the bias is there
        ([2], {}, ""),
    ],
)
def test_a_checkpoint_that_matched_nothing_is_found(layers, theirs, sentence):
    watched, ours = checkpoints.Loads(), nn.Sequential(*(nn.Linear(size, size) for size in layers))
    state = {theirs.get(name, name): value for name, value in ours.state_dict().items()}
    with watched.watching():
        ours.load_state_dict(state, strict=False)
        if sentence:
            with pytest.raises(RuntimeError, match="Missing key"):  # says it by itself
                ours.load_state_dict(state)
    found = checkpoints.lost(watched.table().assign(rank=0))
    assert len(found) == bool(sentence) and all(sentence in one.said for one in found)
    assert all(one.place.startswith(Path(__file__).name) for one in found)
    assert torch.nn.Module.load_state_dict.__module__ == "torch.nn.modules.module"


class Average:
    """Weights by name, as an average keeps them."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module, grow: bool) -> None:
        for name, p in model.named_parameters():  # THE UPDATE
            if name in self.shadow:
                self.shadow[name].data.lerp_(p.data, 0.1)
            elif grow:
                self.shadow[name] = p.detach().clone()


def averaged(changed: bool, grow: bool) -> None:
    """Train under names that torch.compile and DDP change, beside an average, one of torch's, and a copy."""
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(8, 4))
    average, start = Average(net), {name: p.detach().clone() for name, p in net.named_parameters()}
    smooth = AveragedModel(net)  # goes by the order of parameters
    model = torch.compile(DistributedDataParallel(net), backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(7):
        model(torch.ones(8, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update(model if changed else net, grow)
        smooth.update_parameters(model)
    assert start.keys() == dict(net.named_parameters()).keys()


TWICE = "a dict of 4 tensors has weights under two names"
LEFT = "names are read here of which a dict has none: it keeps 2 of these parameters"


@pytest.mark.parametrize(
    ("changed", "grow", "said"),
    [
        (False, False, []),
        (True, False, [LEFT]),
        (True, True, [TWICE, LEFT]),
    ],
)
def test_weights_under_changed_names_are_found(alone, changed, grow, said):
    found = function.look(alone, averaged, changed, grow)
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    at = (
        f"test_found.py:{next(i for i, line in enumerate(lines, 1) if line.endswith('# THE UPDATE'))}: {LEFT}"
    )
    for text in (summary.text(found), html.unescape(re.sub("<[^>]+>", "", page.html(found)))):
        assert [one for one in (TWICE, LEFT) if one in text] == said and (at in text) == (LEFT in said)
        assert ("`_orig_mod.module.0.weight`" in text) == bool(said)
    assert nn.Module.state_dict.__module__ == "torch.nn.modules.module"
