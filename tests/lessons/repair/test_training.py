"""The training job of lesson 18: what notices each fault, on other sizes too, and its repair against one process."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import labkit
from course.repair import hints, program, stages
from course.shared.outcomes import judge as judge_end
from labkit.ranks import RankError
from labkit.ranks.output import quiet_stderr
from labkit.torch_compat.versions import within

FAULTS = list(program.TRAINING_FIXES)
# who notices a fault that is left in when all others are fixed
NOTICED = {
    "save": {"checkpoint"},
    "index": {"graphs"},
    "twice": {"gradients"},
    "norm": {"gradients", "replicas"},
    "clip": {"clip", "replicas"},
    "largest": {"level"},
}


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
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_left_in_is_noticed_by_its_checks(duo, fault):
    assert fails(judged(duo, job(fault))) == NOTICED[fault]


@pytest.mark.slow
def test_all_faults_together_fail_every_check_and_each_has_hints(duo):
    assert list(NOTICED) == FAULTS
    found = judged(duo, stages.sources())
    assert fails(found) == set().union(*NOTICED.values())
    assert "hung: rank 0 in all_gather" in found["checkpoint"][1]
    symptoms = {symptom.rstrip(" 12") for symptom in hints.HINTS}
    assert fails(found) - {"replicas"} <= symptoms


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{"dim": 24, "hidden": 40, "layers": 3, "rows": 15, "pieces": 3}, {"layers": 12, "limit": 50.0}]
)
def test_the_repaired_job_is_right_at_other_sizes(duo, sizes):
    found = judged(duo, job(), **sizes)
    assert fails(found) - {"level"} == set()  # small steps are all overhead


@pytest.mark.slow
def test_the_silent_faults_are_silent_in_the_loss_and_the_repaired_job_trains_as_one_process(duo):
    code = stages.build(job())
    settings = code.Training()
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
    right = duo.run(on_rank, job(), "fit", 6, save_every=2)[0]
    assert right[0] == pytest.approx(expected, rel=1e-3)
    whole = dict(model.named_parameters())
    assert {name: weight.shape for name, weight in right[1].items()} == {n: w.shape for n, w in whole.items()}
    silent = duo.run(on_rank, job("twice", "norm", "clip"), "fit", 6, save_every=2)[0]
    assert silent[0] == pytest.approx(expected, rel=0.05)


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


def test_a_gradient_that_is_not_a_number_on_one_rank_fails_its_checks():
    code = stages.build(stages.sources())
    right, nan = torch.ones(3), torch.tensor([1.0, torch.nan, 1.0])
    facts = [
        {
            "gradients": {"a": e},
            "factors": {"a": 1.0},
            "rest": {"a": 0.0},
            "clip": e,
            "differ": [],
            "seconds": [1.0],
            "graphs": (1, 0, 0),
        }
        for e in (code.error(right, right), code.error(nan, right))
    ]
    assert fails({name: (passed, said) for name, passed, said in code.judge(facts)}) == {"gradients", "clip"}
    assert code.error(torch.zeros(3), torch.zeros(3)) == 0
