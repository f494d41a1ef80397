"""`oddrank.look` on a function: which steps it finds, what it counts, and the page made of it."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import torch
from oddrank.live.here import here
from oddrank.look import gate, page, program_source, summary
from oddrank.look import report_page as pages
from oddrank.look.function import look
from oddrank.look.look import together
from oddrank.look.program import watch
from oddrank.look.steps import Options
from oddrank.record import Collective, Compile, Mark, Tables
from oddrank.record.source import Sources
from oddrank.stages import guards
from torch._dynamo.utils import counters

from labkit.report import Report


def forwards(count: int, apart: bool = False) -> dict:
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
            if apart and turn > 2 and here().rank == 1:
                model(torch.ones(3, dtype=torch.float64))
    return {**counters["stats"], "breaks": sum(counters["graph_break"].values())}


def train(steps: int, ends: bool = True) -> None:
    torch._dynamo.reset()
    model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for _ in range(steps):
        for _ in range(2):  # gradients of two forwards for one step
            model(torch.ones(2, 4)).sum().backward()
        if ends:
            optimizer.step()
            scheduler.step()
        with torch.no_grad():
            model(torch.ones(2, 4))


def profiled(count: int) -> None:
    with torch.profiler.profile():
        forwards(count)


class Server:
    def __init__(self) -> None:
        self.model = torch.compile(lambda x: x.sin() + 1, backend="eager")

    def frame(self) -> None:
        self.model(torch.ones(3)), self.model(torch.ones(3))


def one_frame(server: Server) -> None:
    server.frame()


def serving(count: int) -> None:
    server = Server()
    for _ in range(count):
        one_frame(server)


@pytest.fixture(scope="module")
def reports(ranks):
    return list(ranks.run(watch, forwards, (6,), {}, Options()).values())


@pytest.fixture(scope="module")
def found(reports):
    return together(reports)


def test_each_outermost_compiled_call_is_a_forward_and_compiles_as_it_does_alone(ranks, found):
    assert (found.unit, found.steps, found.apart()) == ("forward", 3, "")
    counts = found.counts
    assert list(counts["regions"]) == [2, 2] and list(counts["breaks"]) == [1, 1]
    assert list(counts["graphs"]) == [2, 2] and list(counts["recompiles"]) == [0, 0]
    alone, breaks = ranks.run(forwards, 6)[0], found.breaks
    assert alone["unique_graphs"] == 2 and alone["breaks"] == len(breaks) == 1
    assert re.fullmatch(r"test_function\.py:\d+ \(model\)", breaks["place"][0])
    assert "graph_break()" in breaks["hints"][0]
    assert 0 < breaks["outside_ms"][0] < found.duration_ms() and 0 < breaks["share"][0] < 1


def nested(count: int) -> None:
    torch._dynamo.reset()
    inner = torch.compile(lambda x: x.tan(), backend="eager")
    hidden = torch.compiler.disable(lambda x: inner(x))

    @torch.compile(backend="eager")
    def model(x):
        return hidden(x.sin()).cos()

    with torch.no_grad():
        for _ in range(count):
            model(torch.ones(3))


def test_a_compiled_call_inside_of_another_one_is_a_part_of_it(ranks):
    found = look(ranks, nested, 6)
    assert (found.unit, found.steps) == ("forward", 3)
    assert list(found.counts["regions"]) == [3, 3]


def test_a_training_step_ends_with_the_optimizer_and_torch_is_as_it_was(ranks):
    report = look(ranks, train, 6).report()
    assert list(report.frame["regions"]) == [2, 2], "two forwards for each step, and none of what follows it"
    assert report.title == "train: 3 steps of 2 ranks"
    assert "oddrank.step" in set(report.tables["ranges"]["name"])
    assert torch.compile.__module__ == "torch"
    assert torch.optim.Optimizer.__init__.__module__ == "torch.optim.optimizer"


@pytest.mark.parametrize(
    ("fn", "step", "regions"),
    [(forwards, "forwards", 8), (serving, "Server.frame", 2), (serving, "one_frame", 2)],
)
def test_a_function_that_the_program_uses_is_the_step(ranks, fn, step, regions):
    skip = {"skip": 0, "steps": 1} if step == fn.__name__ else {}
    report = look(ranks, fn, 4, step=step, **skip).report()
    assert list(report.frame["regions"]) == [regions] * 2


@pytest.mark.parametrize(
    ("fn", "args", "step", "why"),
    [
        (lambda: None, (), "", "called nothing that torch.compile made"),
        (train, (2,), "", "2 steps were found and the first 2 are skipped: skip fewer of them"),
        (train, (4, False), "", "no optimizer.step ended a step after 12 compiled calls"),
        (serving, (5,), "Server.other", "Server.other was never called"),
    ],
)
def test_a_program_without_steps_is_an_error_that_says_why(ranks, fn, args, step, why):
    with pytest.raises(ValueError, match=why):
        look(ranks, fn, *args, step=step)


def test_a_rank_that_wrote_nothing_is_named(reports):
    found = together(reports[:1])
    assert found.missing == [1] and "note: rank 1 wrote nothing" in summary.text(found)
    assert "rank 1 wrote nothing" in page.html(found)


def test_guards_that_differ_by_an_address_only_are_no_difference():
    tree = "+- RootGuardManager\n| +- GuardManager: source=L['w'], accessed_by=X\n| | +- LAMBDA_GUARD: {}"
    specs = [
        guards.parse(tree.format(f"__dtensor_spec_{number}")) for number in (140688146698048, 140688223587040)
    ]
    assert specs[0] == specs[1] and specs[0] != guards.parse(tree.format("__other"))


def test_a_program_with_a_profiler_of_its_own_has_its_breaks_counted(ranks):
    found = look(ranks, profiled, 6)
    assert list(found.counts["breaks"]) == [1, 1] and list(found.breaks["rank 0"]) == [1.0]
    assert "operators were not recorded" in summary.text(found) and "an unknown part" in page.html(found)
    with pytest.raises(ValueError, match="while the script runs a profiler"):
        gate.counts(found)


def test_the_page_and_the_report_hold_all_that_they_show(found):
    body = page.html(found, failure="rank 1 raised <ValueError>")
    place = found.breaks["place"][0]
    for text in (
        "What to do first",
        place,
        "Executed breaks per forward",
        "Provenance",
        "&lt;ValueError&gt;",
    ):
        assert text in body
    assert not re.search(r"src=['\"]?(?!['\"]?data:)|<link|@import|url\(", body), "it loads nothing"
    assert "prefers-color-scheme:dark" in body
    report = found.report()
    assert list(report.tables["costly"]["rank 0"]) == [1.0]


def rows_of(drawn, name: str) -> dict:
    """The lines of a function, by what they begin with."""
    (section,) = (one for one in drawn.listing.sections if one.name.endswith(name))
    return {row.text.split("#")[0].strip(): row for row in section.rows}


def test_each_line_has_what_ranks_did_there_and_how_often_in_a_step(ranks):
    """The text and the operators come with the record: neither is read where the page is made."""
    every = ranks.run(watch, forwards, (4, True), {}, Options(0, 1, "forwards")).values()
    said = [one.to_json() for one in every]
    assert "x = x.sin()" in said[0]
    found = together([Report.from_json(one.replace("x = x.sin()", "x = x.SIN()")) for one in said])
    lines = rows_of(found.source, "model")
    one, other = lines["x = x.SIN()"].cells
    assert (one.graphs, one.runs, other.runs) == (("A",), 4, 5)
    (broke,) = lines["torch._dynamo.graph_break()"].notes
    assert broke.kind == "break" and broke.runs == "4 to 5× a step"
    (again,) = lines["def model(x):"].notes
    assert (again.kind, again.who) == ("recompile", "rank 1") and "Float -> Double" in again.words
    (operators,) = lines["x = x.SIN()"].operators.values()
    assert [one.name.lstrip(".") for one in operators["Dynamo"]] == ["sin"]
    assert {text for text, row in lines.items() if row.differs} == {"def model(x):", "return inner(x).cos()"}
    body = page.html(found)
    assert body.index("x.SIN()") < body.index("What to do first") and str(__file__) not in body
    # that ranks differ is said everywhere, and a gate knows function and guard
    assert list(found.counts["recompiles"]) == [0, 2] and "Ranks differ" in body
    assert found.apart() and "did not differ" not in summary.text(found)
    assert any("model" in name and "Double" in name for name in gate.counts(found)["ranks"]["1"]["again"])


def tangent(x):
    return x.tan()


class Keeper:
    made = None  # outlives a look

    def turn(self, make: bool) -> None:
        if make:
            Keeper.made = torch.compile(tangent, backend="eager")
        Keeper.made(torch.ones(3))
        torch.compile(eval("lambda x: x.sin()"), backend="eager")(torch.ones(3))  # new code in each look


def kept(make: bool) -> None:
    Keeper().turn(make)


def test_what_was_compiled_before_a_look_and_runs_in_it_is_in_the_source_and_in_no_count(ranks, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(ranks, "world_size", 1)
    for make, graphs in ((True, 2), (False, 1)):
        looked = look(ranks, kept, make, skip=0, steps=1, step="Keeper.turn")
        assert list(looked.counts["graphs"]) == [graphs]
        assert rows_of(looked.source, "tangent")["return x.tan()"].cells[0].runs == 1


def test_a_saved_look_shows_its_source_and_an_older_one_is_read(reports, found, tmp_path):
    report = found.report()
    report.save(tmp_path)
    lines = rows_of(program_source.recorded(Report.load(tmp_path / "look.json").tables), "model")
    assert lines["x = x.sin()"].cells[0].runs == 1
    assert program_source.HEADING in pages.write(tmp_path).read_text()
    del report.tables["sources"]
    report.save(tmp_path)
    assert program_source.HEADING not in pages.write(tmp_path).read_text()
    reports[0].save(tmp_path)  # what one rank wrote
    assert program_source.HEADING in pages.write(tmp_path).read_text()


def test_a_line_that_only_calls_a_collective_has_its_text(tmp_path):
    (tmp_path / "loop.py").write_text("def main():\n    loss.backward()\n")
    lines, at = Tables(), {"file": str(tmp_path / "loop.py"), "line": 2, "func": "main"}
    lines.collectives.append(Collective(0, "", "all_reduce", **at))
    kept = program_source.texts(lines, Sources())
    (tmp_path / "loop.py").unlink()
    (note,) = rows_of(program_source.annotated(lines, kept), "main")["loss.backward()"].notes
    assert (note.kind, note.words.split()[0]) == ("collective", "all_reduce")


def test_no_full_path_is_shown():
    lines = Tables()
    at = ("/home/ada/net/train.py", 7, "step")
    lines.compiles.append(Compile(0, "0/0", *at, outcome="graph", operators=1, broke=True))
    said = {"name": "skipped", "text": "see /home/ada/net/train.py:9", "hints": ("in /home/ada/net/loss.py",)}
    lines.marks.append(Mark(0, "0/0", *at, "break", **said))
    none = pd.DataFrame([], columns=list(program_source.TYPES))
    shown = program_source.annotated(lines, none)._repr_html_()
    assert "see train.py:9" in shown and "in loss.py" in shown and "/home/ada" not in shown
