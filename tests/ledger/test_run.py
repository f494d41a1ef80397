"""A run: each probe runs once, what fails is never a yes, and a trial that cannot say no is an error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from labkit import hardware
from labkit.ranks import RankError
from labkit.ranks.output import quietly
from ledger import run as running
from ledger.bench import Bench
from ledger.facts import Fact
from ledger.run import Answer, run
from ledger.trial import CannotTell, NotThere, Trial, part

FACT = Fact("a.sum", "The sum is 4 and even.", "04", "Add.")


def sums(seen):
    yield part("is 4", seen["sum"] == 4, f"the sum is {seen['sum']}")
    yield part("even", seen["sum"] % 2 == 0)


def ask(probe, counter=None, judged=sums, fact=FACT) -> Answer:
    trial = Trial(fact.id, probe, judged, counter, "" if counter else "none")
    (found,) = run([fact], trials={fact.id: trial}, gpus=0)
    return found


def raises(error):
    def probe(bench):
        raise error

    return probe


@pytest.mark.parametrize(
    ("total", "answer", "failed"), [(4, "yes", ""), (6, "no", "is 4"), (3, "no", "is 4; even")]
)
def test_a_no_names_the_parts_that_are_not_so(total, answer, failed):
    found = ask(lambda bench: {"sum": total}, lambda bench: {"sum": 5})
    assert (found.answer, found.failed, found.measured) == (answer, failed, f"the sum is {total}")
    assert (found.seen, found.counter) == ({"sum": total}, {"sum": 5})


def test_a_check_that_says_yes_to_its_counterexample_is_an_error():
    for total in (4, 3):
        found = ask(lambda bench, total=total: {"sum": total}, lambda bench: {"sum": 4})
        assert found.answer == "error"
        assert found.missing == "the trial says yes to its counterexample: the sum is 4; "


@pytest.mark.parametrize(
    ("error", "answer", "said"),
    [
        (NotThere("torch.x is missing"), "no", "torch.x is missing"),
        (CannotTell("the package triton"), "cannot tell", "the package triton"),
        (RuntimeError("no memory\nat all"), "error", "RuntimeError: no memory"),
    ],
)
def test_how_a_probe_ends_is_its_answer(error, answer, said):
    found = ask(raises(error), lambda bench: {"sum": 5})
    assert found.answer == answer and said in (found.failed, found.missing)


@pytest.mark.parametrize(
    ("error", "answer"), [(CannotTell("quiet"), "cannot tell"), (RuntimeError("broken"), "error")]
)
def test_without_its_counterexample_a_check_tells_nothing(error, answer):
    found = ask(lambda bench: {"sum": 4}, raises(error))
    assert found.answer == answer and found.missing.startswith("the counterexample: ")


def test_a_counterexample_that_this_torch_lacks_is_a_no_of_it():
    assert ask(lambda bench: {"sum": 4}, raises(NotThere("torch.x"))).answer == "yes"


def test_a_record_that_cannot_be_judged_is_an_error():
    assert ask(lambda bench: {}).missing == "the judge: KeyError: 'sum'"
    assert "yields no part" in ask(lambda bench: {"sum": 4}, judged=lambda seen: []).missing
    assert ask(lambda bench: {"sum": float("nan")}).answer == "error"  # no JSON
    assert ask(lambda bench: {"sum": object()}).answer == "error"

    def noisy(seen):
        raise CannotTell("a quieter machine")

    assert ask(lambda bench: {"sum": 4}, judged=noisy).missing == "a quieter machine"


def test_a_shared_probe_runs_once_and_each_answer_comes_at_once():
    ran, came = [], []

    def probe(bench):
        ran.append(1)
        return {"sum": 4}

    facts = [Fact(f"a.{name}", "The sum is 4 and even.", "04", "Add.") for name in "xyz"]
    trials = {fact.id: Trial(fact.id, probe, sums, None, "none") for fact in facts}
    run(facts, trials=trials, gpus=0, each=lambda one: came.append((one.fact.id, len(ran))))
    assert len(ran) == 1 and came == [("a.x", 1), ("a.y", 1), ("a.z", 1)]


def test_without_its_hardware_nothing_runs_and_the_answer_says_what_is_missing():
    fact = Fact("a.sum", "The sum is 4.", "04", "Add.", needs=("2 gpus",))
    found = ask(raises(AssertionError), fact=fact)
    assert (found.answer, found.missing, found.seen) == ("cannot tell", "needs 2 GPUs", None)


def _not_there():
    raise NotThere("torch.x is missing")


def _fails():
    raise KeyError("x")


def test_what_a_rank_raises_counts_as_what_the_probe_raises(ranks):
    for function, ends in ((_not_there, {"not there": "torch.x is missing"}), (_fails, None)):
        with pytest.raises(RankError) as error:
            ranks.run(function)
        found = running._ending(error.value)
        assert found == ends if ends else "KeyError" in found["error"]


def test_stderr_is_shut_in_a_probe_and_open_after_it(capfd):
    assert quietly(lambda: os.write(2, b"noise\n")) == 6
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"


@pytest.mark.skipif(bool(hardware.gpus()), reason="there is a GPU here")
def test_without_a_gpu_no_rank_is_started_on_one():
    with Bench() as bench, pytest.raises(ValueError, match="asked for, but there is no GPU here"):
        bench.on_gpus(print)


@pytest.mark.slow
def test_a_second_run_sees_what_the_first_saw_whatever_caches_are_there(tmp_path):
    command = [sys.executable, "-m", "labkit", "ledger", "--only", "reading.functional-graph"]
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert "yes: 1  no: 0  error: 0" in done.stdout, done.stdout + done.stderr
