"""Each part of the contract on ranks that are threads: what it catches, what it lets through, and what it says."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
import torch.distributed as dist

import labkit
from labkit import torch_compat
from labkit.contract import (
    Absent,
    ContractError,
    DigestError,
    Exchange,
    FingerprintError,
    Fingerprints,
    Health,
    HealthError,
    Heartbeat,
    InputDigests,
    NotSteady,
    ParityError,
    Plan,
    PlanError,
    PreflightError,
    Watchdog,
    agree,
    announce,
    assert_parity,
    assert_same_health,
    compile_health,
    crash_after,
    digest,
    executing,
    fingerprint,
    preflight,
    rehearse,
    settings,
    versions,
    warm_up,
)


def raised(found, kind):
    """Every rank raised this kind of error, with the same words."""
    assert [type(error) for error in found] == [kind] * len(found), found
    (said,) = {str(error) for error in found}
    return said


# --- exchange ---


def test_a_rank_that_never_comes_is_named_and_nobody_hangs():
    found = rehearse(3, lambda ex: ex.rank == 1 or ex.gather("parity", 0), timeout=0.3)
    assert found[1] is True
    assert str(found[0]) == str(found[2]) == "rank 1 did not come to 'parity' within 0.3 s"
    assert isinstance(found[0], Absent)


def test_ranks_at_different_checks_say_so():
    said = raised(rehearse(2, lambda ex: ex.gather("plan" if ex.rank else "parity", 0)), ContractError)
    assert said == "the ranks are not at the same check, number 1: rank 0 at 'parity', rank 1 at 'plan'"


def test_a_rank_that_failed_is_not_waited_for():
    found = rehearse(2, lambda ex: ex.fail("no memory") if ex.rank else ex.gather("plan", 0), timeout=60)
    assert str(found[0]) == "rank 1 failed: no memory"


def test_a_second_exchange_of_one_name_reads_nothing_of_the_first():
    stores = [dist.HashStore()]

    def body(ex):
        first = Exchange(stores[0], ex.rank, 2, "same")
        first.gather("a", ex.rank)
        return Exchange(stores[0], ex.rank, 2, "same").gather("a", ex.rank + 10)

    assert rehearse(2, body) == [{0: 10, 1: 11}] * 2


def test_rank_0_outside_is_neither_asked_nor_waited_for():
    store = dist.HashStore()

    def body(ex):
        if ex.rank == 0:
            with pytest.raises(
                ValueError, match="rank 0 is not one of the ranks of exchange 'mesh': 1 and 2"
            ):
                Exchange(store, 0, [1, 2], "mesh")
            return None
        return assert_parity(Exchange(store, ex.rank, [1, 2], "mesh"), {"compile": True})

    assert rehearse(3, body) == [None, {"compile": "True"}, {"compile": "True"}]


def test_connect_names_what_is_not_set(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="RANK is not set: start this with torchrun"):
        Exchange.connect()


# --- parity ---


def test_parity_names_the_key_and_each_value():
    def body(ex):
        assert_parity(ex, {"a": 1, "compile": 1 - ex.rank, **({"only here": 3} if ex.rank else {})})

    said = raised(rehearse(2, body), ParityError)
    assert said.splitlines() == [
        "2 of 3 settings differ between ranks:",
        "    compile: rank 0 1, rank 1 0",
        "    only here: rank 0 not set, rank 1 3",
    ]


@pytest.mark.parametrize("effective", [False, True])
def test_auto_that_resolves_differently_is_caught_only_by_what_is_in_effect(effective):
    def body(ex):
        chosen = {"attention": lambda: ("flash", "triton")[ex.rank]} if effective else {}
        return assert_parity(ex, settings(flags={"attention": "auto"}, effective=chosen))

    found = rehearse(2, body)
    if effective:
        assert "attention in effect: rank 0 'flash', rank 1 'triton'" in raised(found, ParityError)
    else:
        assert found[0] == found[1]


def test_an_environment_variable_that_is_missing_is_not_an_empty_one(monkeypatch):
    monkeypatch.setenv("LABKIT_TEST_EMPTY", "")
    monkeypatch.delenv("LABKIT_TEST_NONE", raising=False)
    found = settings(env=["LABKIT_TEST_EMPTY", "LABKIT_TEST_NONE"], with_versions=False)
    assert found == {"env LABKIT_TEST_EMPTY": "", "env LABKIT_TEST_NONE": "not set"}


def test_what_cannot_be_resolved_is_a_value():
    def broken():
        raise ImportError("no flash")

    found = settings(effective={"attention": broken}, with_versions=False)
    assert found == {"attention in effect": "ImportError: no flash"}
    assert versions()["torch"] == torch.__version__


# --- plan ---


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"action": "noop"}, "action: rank 0 infer, rank 1 noop"),
        ({"tensors": {"x": torch.ones(3, 2)}}, "tensor x: rank 0 (2, 3) float32, rank 1 (3, 2) float32"),
        ({"phases": {"recompute": True}}, "phase recompute: rank 0 False, rank 1 True"),
        ({"epochs": {"cache": 2}}, "epoch cache: rank 0 1, rank 1 2"),
        ({"calls": 3}, "number of calls: rank 0 2, rank 1 3"),
        ({"calls": ["b", "a"]}, "call 1: rank 0 none, rank 1 b"),
        ({"index": -1}, "index: rank 0 0, rank 1 -1"),
    ],
)
def test_a_plan_that_differs_in_anything_is_refused(other, line):
    common = {
        "action": "infer",
        "tensors": {"x": torch.ones(2, 3)},
        "phases": {"recompute": False},
        "epochs": {"cache": 1},
        "calls": 2,
    }
    plans = [Plan.of(**common), Plan.of(**{**common, **other})]
    assert line in raised(rehearse(2, lambda ex: agree(ex, plans[ex.rank])), PlanError)
    assert rehearse(2, lambda ex: agree(ex, plans[0])) == [plans[0]] * 2


def test_workers_follow_the_announced_plan():
    plan = Plan.of("infer", {"x": torch.ones(2)}, calls=["encode", "decode"], phases={"k": 3})
    assert rehearse(2, lambda ex: announce(ex, None if ex.rank else plan)) == [plan, plan]
    assert "given by no rank" in raised(rehearse(2, lambda ex: announce(ex, None)), PlanError)
    assert "given by [0, 1]" in raised(rehearse(2, lambda ex: announce(ex, plan)), PlanError)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (["a", "b"], None),
        (["a"], "1 calls were made, planned were 2"),
        (["a", "b", "a"], "call 3 is 'a', planned were 2 calls"),
        (["b", "a"], "call 1 is 'b', planned was 'a'"),
    ],
)
def test_calls_are_counted_and_named(steps, says):
    made = []

    def body():
        with executing(Plan.of("infer", calls=["a", "b"])) as run:
            for step in steps:
                run.step(step)
                made.append(step)

    if says is None:
        body()
        assert made == steps
    else:
        with pytest.raises(PlanError, match=says):
            body()
        assert made == [s for s, planned in zip(steps, ["a", "b"], strict=False) if s == planned], (
            "never made"
        )


def test_an_error_in_the_block_is_not_hidden_by_the_count():
    with pytest.raises(KeyError), executing(Plan.of("infer", calls=2)):
        raise KeyError("own")


# --- digests and fingerprints ---


def test_a_digest_sees_shape_dtype_and_every_bit():
    x = torch.arange(6.0)
    others = [x.reshape(2, 3), x.double(), x.int(), -x, x.flip(0), torch.tensor([]), torch.tensor(0.0)]
    assert len({digest(t) for t in [x, *others]}) == 1 + len(others)
    assert digest(torch.zeros(1)) != digest(-torch.zeros(1)), "equal, and not the same bits"
    assert digest(x[::2]) == digest(x[::2].clone()) and digest(x.bfloat16()) and digest(torch.tensor([True]))


def test_inputs_are_compared_when_they_are_due():
    def body(ex, every, index):
        return InputDigests(ex, every).check(index, x=torch.ones(2), y=torch.ones(2) + 1e-7 * ex.rank)

    said = raised(rehearse(2, lambda ex: body(ex, 1, 5)), DigestError)
    assert said.startswith("call 5: 1 of 2 inputs differ between ranks:\n    y: rank 0 ")
    for every, index in ((0, 5), (1, -1), (2, 5)):  # off, a warmup, not its turn
        assert rehearse(2, lambda ex, e=every, i=index: body(ex, e, i)) == [False, False]
    assert "of different calls" in raised(rehearse(2, lambda ex: body(ex, 1, ex.rank)), DigestError)


def test_digests_on_one_rank_only_is_a_matter_of_parity():
    def body(ex):
        assert_parity(ex, InputDigests(ex, every=ex.rank).settings())

    assert "input digests, every: rank 0 0, rank 1 1" in raised(rehearse(2, body), ParityError)


@pytest.mark.parametrize("size", [1, 5, (1 << 18) + 3])
def test_a_fingerprint_changes_with_any_byte_and_with_order(size):
    w = torch.arange(float(size)) + 1
    same, last, swapped = w.clone(), w.clone(), w.clone()
    last[-1] += 0.5
    assert fingerprint(w) == fingerprint(same) != fingerprint(last)
    if size > 1:
        swapped[0], swapped[-1] = w[-1], w[0]
        assert fingerprint(swapped) != fingerprint(w)


def test_a_shard_that_changed_and_a_replica_that_is_none():
    def drift(ex, where, replicated=()):
        weights = {"shard": torch.ones(4) * (ex.rank + 1), "norm": torch.ones(2)}
        watched = Fingerprints(ex, weights, replicated)
        watched.check()
        if ex.rank == 1 and where:
            weights[where][0] += 1
        watched.check()
        return "fine"

    assert rehearse(2, lambda ex: drift(ex, "")) == ["fine", "fine"]
    assert "rank 1: norm" in raised(rehearse(2, lambda ex: drift(ex, "norm")), FingerprintError)
    assert "shard" in raised(rehearse(2, lambda ex: drift(ex, "", ["shard"])), FingerprintError)
    with pytest.raises(ValueError, match="replicated names that are no tensors here: bias"):
        Fingerprints(Exchange(dist.HashStore(), 0, 1), {}, ["bias"])


# --- health and warmup ---


def test_health_names_the_first_other_break_and_guard():
    healths = [
        Health(1, 0, 0),
        Health(2, 3, 1, sites=["print at f.py:3"], guards=["x.size(0) == 2"]),
    ]
    said = raised(rehearse(2, lambda ex: assert_same_health(ex, healths[ex.rank])), HealthError)
    for line in ("graphs: rank 0 1, rank 1 2", "breaks: rank 0 0, rank 1 3", "recompiles: rank 0 0, rank 1 1",
                 "first other break: rank 0 none, rank 1 print at f.py:3",
                 "first other guard: rank 0 none, rank 1 x.size(0) == 2"):  # fmt: skip
        assert line in said
    assert rehearse(2, lambda ex: assert_same_health(ex, healths[1]))[0] == {0: healths[1], 1: healths[1]}


def test_breaks_of_equal_number_at_other_places_are_other_breaks():
    sites = [["print at f.py:3"], ["print at f.py:9"]]
    found = rehearse(2, lambda ex: assert_same_health(ex, Health(2, 1, sites=sites[ex.rank])))
    assert "first other break: rank 0 print at f.py:3, rank 1 print at f.py:9" in raised(found, HealthError)


@torch.compiler.disable
def _hidden(x):
    return x + 1


def _last(x):
    return _hidden(x * 2)  # nothing is left to compile after this break


def _middle(x):
    return _last(x) * 2 if x.sum() > 0 else x


@pytest.mark.skipif(
    not torch_compat.sees_every_region(),
    reason="this torch shows only regions with a graph without a profiler",
)
@pytest.mark.parametrize(("function", "breaks"), [(_hidden, 0), (_last, 1), (_middle, 3)])
def test_health_counts_the_breaks_that_a_record_counts(function, breaks):
    torch_compat.dynamo_reset()
    compiled, x = torch.compile(function, backend="eager"), torch.ones(3)
    with compile_health() as first:
        compiled(x)
    with compile_health() as steady:
        compiled(x), compiled(x)
    with labkit.record() as rec, rec.forward():
        compiled(x)
    (counted,) = rec.counts["breaks"]
    assert (first.breaks, steady.breaks, counted) == (breaks, 2 * breaks, breaks)
    assert first.regions == rec.counts["regions"].item() and steady.graphs == 0


OLDER = """
    import torch
    def twice(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2
    compiled = torch.compile(twice, backend="eager")
    compiled(torch.ones(2))  # before anybody listens
    from labkit.contract import compile_health
    with compile_health() as health:
        compiled(torch.ones(2))
    print(health.regions, health.breaks, health.graphs)
"""


def test_a_break_of_code_that_is_older_than_the_log_counts_too():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OLDER)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "2 1 0\n", done.stderr


@pytest.mark.skipif(
    torch.__version__.startswith("2.11."),
    reason="torch 2.11 crashes by itself where a function is compiled again on another thread than before",
)
def test_a_warmup_ends_with_the_round_that_compiles_nothing():
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    sizes = iter([4])
    (steady,) = rehearse(1, lambda ex: warm_up(ex, lambda: compiled(torch.ones(2))))
    assert (steady.rounds, steady.health.graphs, len(steady.seconds)) == (2, 1, 2)
    (found,) = rehearse(1, lambda ex: warm_up(ex, lambda: compiled(torch.ones(next(sizes))), rounds=1))
    assert isinstance(found, NotSteady) and "size mismatch" in str(found)
    with pytest.raises(ValueError, match="at least one round"):
        warm_up(Exchange(dist.HashStore(), 0, 1), print, rounds=0)


# --- preflight, watchdog ---


def test_what_cannot_be_sent_is_named_before_anybody_hears_of_it():
    for meta, tensors, says in (
        ({"ok": 1, "f": lambda: 1}, {}, r"meta 'f' \(function\) cannot be pickled"),
        ({"lock": threading.Lock()}, {}, r"meta 'lock' \(lock\) cannot be pickled"),
        ({}, {"x": [1.0]}, "tensor 'x' is a list, not a torch.Tensor"),
        ({}, {"x": torch.eye(2).to_sparse()}, "tensor 'x' is torch.sparse_coo: only dense tensors"),
        (
            {},
            {"x": torch.ones(2), "y": torch.ones(2, device="meta")},
            "tensor 'y' is on meta, and cpu was expected",
        ),
    ):
        with pytest.raises(PreflightError, match=says):
            preflight(meta, tensors)
    assert preflight({"ok": 1}, {"x": torch.ones(2, 3).t()}).tensors[0].is_contiguous()


class _Beating:
    """A store of a leader in another process: its heartbeat goes on whatever holds this process up."""

    alive = True

    def check(self, keys):
        return True

    def get(self, key):
        return str(int(time.monotonic() / 0.02)) if self.alive else "0"

    def clone(self):
        return self


def test_a_worker_that_stood_still_is_no_silence_of_the_leader():
    store, silent = _Beating(), threading.Event()
    lists = [torch.rand(1_000_000).tolist() for _ in range(4)]
    with Watchdog(store, window=0.15, on_silence=lambda seconds: silent.set()):
        time.sleep(0.2)
        began = time.monotonic()
        for numbers in lists:
            numbers.sort()  # each is one call, which keeps Python's lock
        stood = time.monotonic() - began
        time.sleep(0.2)
        assert stood > 0.15, "too short to tell"
        assert not silent.is_set()
        store.alive = False
        assert silent.wait(30)


def test_a_heartbeat_keeps_the_watchdog_quiet_until_it_stops():
    store, silent = dist.HashStore(), threading.Event()
    heartbeat = Heartbeat(store, every=0.02)
    with Watchdog(store, window=5, on_silence=lambda seconds: silent.set()) as dog:
        first = store.get("heartbeat")
        deadline = time.monotonic() + 30
        while store.get("heartbeat") == first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert store.get("heartbeat") != first and not silent.is_set()
        heartbeat.stop()
        dog.window = 0.1
        assert silent.wait(30)


def test_bad_times_are_refused():
    for make in (
        lambda: Watchdog(dist.HashStore(), 0),
        lambda: Heartbeat(dist.HashStore(), -1),
        lambda: Exchange(dist.HashStore(), 0, 1, timeout=0),
        lambda: crash_after(0).__enter__(),
        lambda: InputDigests(Exchange(dist.HashStore(), 0, 1), -1),
        lambda: Plan.of("infer", calls=-1),
    ):
        with pytest.raises(ValueError):
            make()
