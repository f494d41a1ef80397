"""The training job of lesson 18: its repair on other sizes and against one process, other fixes, its judge."""

from __future__ import annotations

import sys

import pytest
import torch
from oddrank.torch_names import within
from torch import nn

import labkit
from course.repair import program, stages
from course.shared.outcomes import judge as judge_end
from labkit.ranks import RankError
from labkit.ranks.output import quiet_stderr

FAULTS = list(program.TRAINING_FIXES)


def job(*left):
    return stages.sources(fault for fault in FAULTS if fault not in left)


def on_rank(cells, name, steps=0, **settings):
    """Call `fit` or `examine` of the job, with Dynamo alone."""
    code = stages.build(cells)
    sys.modules[code.__name__] = code  # Dynamo imports by name what it inlines
    with quiet_stderr():
        return getattr(code, name)(code.Training(backend="eager", **settings), *[steps] * bool(steps))


def judged(duo, cells, **settings):
    """Each check of the contract, and whether a checkpoint ends: whether it passed, and what was said."""
    facts = duo.run(on_rank, cells, "examine", **settings)
    found = {name: (passed, said) for name, passed, said in stages.build(cells).judge(list(facts.values()))}
    try:
        duo.run(on_rank, cells, "fit", 3, save_every=1, stall=2, **settings)
        found["checkpoint"] = (True, "")
    except RankError as error:
        found["checkpoint"] = (False, ": ".join(judge_end(error)))
    return found


def fails(found):
    return {name for name, (passed, _) in found.items() if not passed}


@pytest.fixture(scope="module")
def duo():
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True, live=False) as ranks:
        yield ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{"dim": 24, "hidden": 40, "layers": 3, "rows": 15, "pieces": 3}, {"layers": 12, "limit": 50.0}]
)
def test_the_repaired_job_is_right_at_other_sizes(duo, sizes):
    found = judged(duo, job(), **sizes)
    assert fails(found) - {"level"} == set()  # small steps are all overhead


@pytest.mark.slow
def test_the_repaired_job_trains_and_keeps_as_one_process(duo):
    code = stages.build(job())
    settings = code.Training(dim=24, hidden=40, layers=3, rows=15, pieces=3)
    model = code.network(settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    expected = []
    for number in range(6):
        x, y = code.batch(settings, number)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.limit)
        optimizer.step()
        expected.append(loss.item())
    sizes = {name: getattr(settings, name) for name in ("dim", "hidden", "layers", "rows", "pieces")}
    losses, kept = duo.run(on_rank, job(), "fit", 6, save_every=2, **sizes)[0]
    assert losses == pytest.approx(expected, rel=1e-3)
    assert set(kept) == {name for name, _ in model.named_parameters()}
    for name, weight in model.named_parameters():
        assert torch.allclose(kept[name], weight, atol=1e-5), name


@pytest.mark.slow
def test_other_fixes_are_right_too(duo):
    """f before the norm and its gradients added up at the end; one graph for the whole network."""
    cells = job("norm", "index")
    for before, after in (
        (
            "        return total",
            "        for layer in self.model[:-1]:\n"
            "            dist.all_reduce(layer.norm.grad, group=self.group)\n"
            "        return total",
        ),
        (
            "        for layer in self.model[:-1]:\n            layer.compile(backend=settings.backend)",
            "        self.compiled = torch.compile(self.model, backend=settings.backend)",
        ),
        ("F.cross_entropy(self.model(rows)", "F.cross_entropy(self.compiled(rows)"),
    ):
        held = [label for label, text in cells.items() if before in text]
        assert len(held) == 1
        cells[held[0]] = cells[held[0]].replace(before, after)
    found = judged(duo, cells)
    assert fails(found) == set(), found
    cells = {
        label: text.replace("torch.tensor(index + 1.0)", "float(index + 1)") for label, text in job().items()
    }
    assert cells != job()
    found = judged(duo, cells, layers=13)
    assert ("graphs" in fails(found)) == within(torch.__version__, until="2.12"), found


def test_a_gradient_that_is_not_a_number_and_more_work_on_one_rank_fail_their_checks():
    code = stages.build(stages.sources())
    right, nan = torch.ones(3), torch.tensor([1.0, torch.nan, 1.0])
    assert code.error(torch.zeros(3), torch.zeros(3)) == 0

    def failed(found, seconds):
        facts = [
            {
                "gradients": {"a": code.error(of_rank, right)},
                "factors": {"a": 1.0},
                "rest": {"a": 0.0},
                "clip": code.error(of_rank, right),
                "differ": [],
                "seconds": [took],
                "graphs": (1, 0, 0),
            }
            for of_rank, took in zip(found, seconds, strict=True)
        ]
        return fails({name: (passed, said) for name, passed, said in code.judge(facts)})

    assert failed((right, nan), (1.0, 1.0)) == {"gradients", "clip"}
    assert failed((right, right), (1.0, 1.4)) == set()
    assert failed((right, right), (4.0, 1.0)) == failed((right, right), (1.0, 4.0)) == {"level"}
