"""`labkit.look` on ranks: which steps it finds, what it counts, and the page made of it."""

from __future__ import annotations

import re

import pytest
from oddrank.stages import guards

from labkit.look import gate, page, summary
from labkit.look.call import look
from labkit.look.found import together
from labkit.look.program import watch
from labkit.look.steps import Options


def forwards(count: int, apart: bool = False) -> dict:
    import torch
    import torch.distributed as dist
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()

    @torch.compile(backend="eager")
    def inner(x):
        return x.tan()

    @torch.compile(backend="eager")
    def model(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return inner(x).cos()

    with torch.no_grad():
        for turn in range(count):
            model(torch.ones(3))
            if apart and turn > 2 and dist.get_rank() == 1:
                model(torch.ones(3, dtype=torch.float64))
    return {**counters["stats"], "breaks": sum(counters["graph_break"].values())}


def train(steps: int) -> None:
    import torch

    torch._dynamo.reset()
    model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for _ in range(steps):
        for _ in range(2):  # gradients of two forwards for one step
            model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            model(torch.ones(2, 4))


def nothing() -> None:
    pass


def profiled(count: int) -> None:
    import torch

    with torch.profiler.profile():
        forwards(count)


@pytest.fixture(scope="module")
def reports(ranks):
    return list(ranks.run(watch, forwards, (6,), {}, Options()).values())


@pytest.fixture(scope="module")
def found(reports):
    return together(reports)


def test_each_outermost_compiled_call_is_a_forward(found):
    assert (found.unit, found.steps) == ("forward", 3)
    counts = found.counts
    assert list(counts["regions"]) == [2, 2] and list(counts["breaks"]) == [1, 1]
    assert list(counts["graphs"]) == [2, 2] and list(counts["recompiles"]) == [0, 0]
    assert found.apart() == ""


def test_what_it_looks_at_compiles_as_it_does_alone(ranks, found):
    alone = ranks.run(forwards, 6)[0]
    assert alone["unique_graphs"] == found.counts["graphs"][0]
    breaks = found.breaks
    assert alone["breaks"] == len(breaks) == 1
    assert list(breaks["place"]) == ["test_look.py:32 (model)"] and "graph_break()" in breaks["hints"][0]
    assert 0 < breaks["outside_ms"][0] < found.duration_ms() and 0 < breaks["share"][0] < 1


def test_a_training_step_ends_with_the_optimizer(ranks):
    report = look(ranks, train, 6).report()
    assert list(report.frame["regions"]) == [2, 2], "two forwards for each step, and none of what follows it"
    assert report.title == "train: 3 steps of 2 ranks"
    assert "oddrank.step" in set(report.tables["ranges"]["name"])


def test_a_named_function_is_the_step(ranks):
    report = look(ranks, forwards, 4, step="forwards", skip=0, steps=1).report()
    assert list(report.frame["regions"]) == [8, 8]


class Server:
    def __init__(self) -> None:
        import torch

        self.model = torch.compile(lambda x: x.sin() + 1, backend="eager")

    def frame(self) -> None:
        import torch

        self.model(torch.ones(3)), self.model(torch.ones(3))


def one_frame(server: Server) -> None:
    server.frame()


def serving(count: int) -> None:
    server = Server()
    for _ in range(count):
        one_frame(server)


@pytest.mark.parametrize("step", ["Server.frame", "one_frame"])
def test_a_function_that_the_program_uses_is_the_step(ranks, step):
    report = look(ranks, serving, 5, step=step).report()
    assert list(report.frame["regions"]) == [2, 2]
    with pytest.raises(ValueError, match="Server.other was never called"):
        look(ranks, serving, 5, step="Server.other")


def test_torch_is_as_it_was_afterwards(ranks):
    def untouched():
        import torch

        return torch.compile.__module__, torch.optim.Optimizer.__init__.__module__

    look(ranks, train, 6)
    assert ranks.run(untouched).same() == ("torch", "torch.optim.optimizer")


def test_a_program_without_steps_is_an_error_that_says_why(ranks):
    with pytest.raises(ValueError, match="called nothing that torch.compile made"):
        look(ranks, nothing)
    with pytest.raises(ValueError, match="there are 2 steps and the first 2 are skipped: skip fewer of them"):
        look(ranks, train, 2)


def test_ranks_that_differ_are_named(ranks):
    found = together(list(ranks.run(watch, forwards, (6, True), {}, Options(3, 3)).values()))
    assert found.apart() and "all ranks did the same" not in summary.text(found)
    assert list(found.counts["recompiles"]) == [0, 2]
    assert "Ranks differ" in page.html(found)


def test_a_rank_that_wrote_nothing_is_named(reports):
    found = together(reports[:1])
    assert found.missing == [1] and "note: rank 1 wrote nothing" in summary.text(found)
    assert "rank 1 wrote nothing" in page.html(found)


def test_a_step_that_no_optimizer_ends_is_said(ranks):
    def train() -> None:
        import torch

        model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
        torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()

    with pytest.raises(ValueError, match="no optimizer.step ended a step after 4 compiled calls"):
        look(ranks, train)


def test_guards_that_differ_by_an_address_only_are_no_difference():
    tree = "+- RootGuardManager\n| +- GuardManager: source=L['w'], accessed_by=X\n| | +- LAMBDA_GUARD: {}"
    specs = [
        guards.parse(tree.format(f"__dtensor_spec_{number}")) for number in (140688146698048, 140688223587040)
    ]
    assert specs[0] == specs[1] and specs[0] != guards.parse(tree.format("__other"))


def test_a_program_with_a_profiler_of_its_own_has_its_breaks_counted(ranks):
    found = together(list(ranks.run(watch, profiled, (6,), {}, Options()).values()))
    assert list(found.counts["breaks"]) == [1, 1] and list(found.breaks["rank 0"]) == [1.0]
    assert "operators were not recorded" in summary.text(found) and "an unknown part" in page.html(found)
    with pytest.raises(ValueError, match="while the script runs a profiler"):
        gate.counts(found)


def test_the_figure_is_the_strip(ranks):
    report = look(ranks, forwards, 6).report()
    assert "2 compiled regions" in report.figure("typical").summary
    assert list(report.tables["costly"]["rank 0"]) == [1.0]


def test_the_page_holds_all_that_it_shows(found):
    body = page.html(found, failure="rank 1 raised <ValueError>")
    for text in ("What to do first", "test_look.py:32 (model)", "Executed breaks per forward", "Provenance"):
        assert text in body
    assert "&lt;ValueError&gt;" in body
    assert not re.search(r"(?:src|href)=['\"](?:https?:)?//", body), "it loads nothing"
    assert "prefers-color-scheme:dark" in body
    assert all(source.startswith("data:") for source in re.findall(r"<img[^>]*src='([^']*)'", body))
