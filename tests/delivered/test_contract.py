"""Each part of the delivered contract, on ranks that are threads: what it catches, lets through, and says."""

from __future__ import annotations

import ast
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from rehearsal import raised, rehearse

from course.break_it import suite
from course.shared import contract
from course.shared.contract import Absent, Exchange, Fingerprints, InputDigests, Plan, alike


@pytest.mark.parametrize(("copied", "may_import"), [(contract, set()), (suite, {"contract"})])
def test_a_file_to_copy_needs_torch_and_the_one_beside_it(copied, may_import):
    nodes = [
        n for n in ast.walk(ast.parse(copied.PATH.read_text())) if isinstance(n, ast.Import | ast.ImportFrom)
    ]
    names = {(getattr(node, "module", None) or node.names[0].name).partition(".")[0] for node in nodes}
    assert names - sys.stdlib_module_names == {"torch", *may_import}


# --- exchange ---


def test_a_rank_that_never_comes_is_named_and_nobody_hangs():
    found = rehearse(3, lambda ex: ex.rank == 1 or ex.gather("settings", 0), timeout=0.3)
    assert found[1] is True
    assert str(found[0]) == str(found[2]) == "rank 1 did not come to 'settings' within 0.3 s"
    assert isinstance(found[0], Absent)


def test_ranks_at_different_checks_say_so():
    said = raised(rehearse(2, lambda ex: ex.gather("plan" if ex.rank else "settings", 0)))
    assert said == "the ranks are not at the same check, number 1: rank 0 at 'settings', rank 1 at 'plan'"


def test_a_rank_that_failed_is_not_waited_for():
    found = rehearse(2, lambda ex: ex.fail("no memory") if ex.rank else ex.gather("plan", 0), timeout=60)
    assert str(found[0]) == "rank 1 failed: no memory"


def test_a_second_exchange_of_one_name_reads_nothing_of_the_first():
    store = dist.HashStore()

    def body(ex):
        Exchange(store, ex.rank, 2, "same").gather("a", ex.rank)
        return Exchange(store, ex.rank, 2, "same").gather("a", ex.rank + 10)

    assert rehearse(2, body) == [{0: 10, 1: 11}] * 2


def test_many_exchanges_leave_no_keys_behind():
    store = dist.HashStore()
    rehearse(2, lambda ex: [one.gather("a", i) for one in [Exchange(store, ex.rank, 2)] for i in range(20)])
    assert store.num_keys() == 2, "those of the last"


def test_a_rank_outside_is_neither_asked_nor_waited_for():
    store = dist.HashStore()

    def body(ex):
        if ex.rank == 0:
            with pytest.raises(
                ValueError, match="rank 0 is not one of the ranks of exchange 'mesh': 1 and 2"
            ):
                Exchange(store, 0, [1, 2], "mesh")
            return None
        return alike(Exchange(store, ex.rank, [1, 2], "mesh"), "settings", {"compile": True})

    assert rehearse(3, body) == [None] * 3


def test_connect_names_what_is_not_set(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match="RANK is not set: start this with torchrun"):
        Exchange.connect()


# --- settings ---


def test_what_differs_is_named_with_each_rank_s_value_and_its_type():
    def body(ex):
        alike(ex, "settings", {"a": 1, "b": "1" if ex.rank else 1, **({"only here": 3} if ex.rank else {})})

    assert raised(rehearse(2, body)).splitlines() == [
        "settings differ between ranks (2 of 3):",
        "    b: rank 0 1, rank 1 '1'",
        "    only here: rank 0 (not set), rank 1 3",
    ]


@pytest.mark.parametrize("effective", [False, True])
def test_auto_that_resolves_differently_is_caught_only_by_what_is_in_effect(effective):
    def body(ex):
        chosen = {"attention": lambda: ("flash", "triton")[ex.rank]} if effective else {}
        return alike(ex, "settings", contract.settings(flags={"attention": "auto"}, effective=chosen))

    found = rehearse(2, body)
    if effective:
        assert "attention in effect: rank 0 'flash', rank 1 'triton'" in raised(found)
    else:
        assert found == [None, None]


def test_settings_have_versions_unset_variables_and_what_cannot_be_resolved(monkeypatch):
    monkeypatch.setenv("LABKIT_TEST_EMPTY", "")
    monkeypatch.delenv("LABKIT_TEST_NONE", raising=False)

    def broken():
        raise ImportError("no flash")

    names = ["LABKIT_TEST_EMPTY", "LABKIT_TEST_NONE"]
    found = contract.settings(env=names, effective={"attention": broken}, versions=False)
    assert found == {
        "env LABKIT_TEST_EMPTY": "",
        "env LABKIT_TEST_NONE": "(not set)",
        "attention in effect": "ImportError: no flash",
    }
    before = contract.settings()
    assert before["torch"] == torch.__version__
    with torch.no_grad():
        after = contract.settings()
    assert [name for name in before if before[name] != after[name]] == ["grad enabled"]


# --- plan ---


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"action": "noop"}, "action: rank 0 'infer', rank 1 'noop'"),
        ({"tensors": {"x": torch.ones(3, 2)}}, "tensor x: rank 0 '(2, 3) torch.float32', rank 1 '(3, 2) "),
        ({"phases": {"recompute": True}}, "phase recompute: rank 0 False, rank 1 True"),
        ({"epochs": {"cache": 2}}, "epoch cache: rank 0 1, rank 1 2"),
        ({"calls": 3}, "number of calls: rank 0 2, rank 1 3"),
        ({"calls": ["b", "a"]}, "call 1: rank 0 'call', rank 1 'b'"),
        ({"index": contract.WARMUP}, "index: rank 0 0, rank 1 -1"),
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
    plans = [Plan(**common), Plan(**{**common, **other})]
    assert line in raised(rehearse(2, lambda ex: contract.agree(ex, plans[ex.rank])))
    assert rehearse(2, lambda ex: contract.agree(ex, plans[0])) == [plans[0]] * 2


def test_workers_follow_the_announced_plan():
    plan = Plan("infer", {"x": torch.ones(2)}, calls=["encode", "decode"], phases={"k": 3})
    assert rehearse(2, lambda ex: contract.announce(ex, None if ex.rank else plan)) == [plan, plan]
    assert "given by no rank" in raised(rehearse(2, lambda ex: contract.announce(ex, None)))
    assert "given by [0, 1]" in raised(rehearse(2, lambda ex: contract.announce(ex, plan)))


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (["a", "b"], None),
        (["a"], "1 calls were made, planned were 2"),
        (["a", "b", "a"], "call 3 is 'a', planned were 2 calls"),
        (["b", "a"], "call 1 is 'b', planned was 'a'"),
    ],
)
def test_calls_are_counted_and_peers_at_a_check_hear_of_one_that_is_not_planned(steps, says):
    made = []

    def body(ex):
        if ex.rank:
            return ex.gather("next", 0)
        with contract.executing(Plan("infer", calls=["a", "b"]), ex) as step:
            for name in steps:
                step(name)
                made.append(name)
        return ex.gather("next", 0)

    found = rehearse(2, body, timeout=60)
    if says is None:
        assert made == steps and found == [{0: 0, 1: 0}] * 2
    else:
        assert str(found[0]) == f"rank 0: {says}" and str(found[1]) == f"rank 0 failed: rank 0: {says}"
        assert made == [s for s, planned in zip(steps, "ab", strict=False) if s == planned], "never made"


def test_an_error_in_the_block_is_not_hidden_by_the_count():
    with pytest.raises(KeyError), contract.executing(Plan("infer", calls=2)):
        raise KeyError("own")


# --- digests and fingerprints ---


def test_a_digest_sees_shape_dtype_and_every_bit():
    x = torch.arange(6.0)
    others = [x.reshape(2, 3), x.double(), x.int(), -x, x.flip(0), torch.tensor([]), torch.tensor(0.0)]
    assert len({contract.digest(t) for t in [x, *others]}) == 1 + len(others)
    assert contract.digest(torch.zeros(1)) != contract.digest(-torch.zeros(1)), "equal, and not the same bits"
    z = torch.tensor([1 + 2j, 3 - 1j])
    for view in (x[::2], z.conj(), z.conj().imag, x.bfloat16(), torch.tensor([True])):
        for found in (contract.digest, contract.fingerprint):
            assert found(view) == found(view.clone())
    assert contract.digest(z) != contract.digest(z.conj())


def test_inputs_are_compared_when_they_are_due():
    def body(ex, every, index):
        return InputDigests(ex, every).check(index, x=torch.ones(2), y=torch.ones(2) + 1e-7 * ex.rank)

    said = raised(rehearse(2, lambda ex: body(ex, 1, 5)))
    assert said.startswith("inputs differ between ranks (1 of 3):\n    y: rank 0 ")
    for every, index in ((0, 5), (1, contract.WARMUP), (2, 5)):  # off, a warmup, not its turn
        assert rehearse(2, lambda ex, e=every, i=index: body(ex, e, i)) == [False, False]
    assert "number of the call: rank 0 0, rank 1 1" in raised(rehearse(2, lambda ex: body(ex, 1, ex.rank)))
    assert rehearse(2, lambda ex: InputDigests(ex).check(0, x=torch.ones(2))) == [True, True]


def test_digests_on_one_rank_only_are_a_setting_that_differs():
    def body(ex):
        alike(ex, "settings", InputDigests(ex, every=ex.rank).settings)

    assert "input digests, every: rank 0 0, rank 1 1" in raised(rehearse(2, body))


@pytest.mark.parametrize("size", [1, 5, (1 << 18) + 3])
def test_a_fingerprint_changes_with_any_byte_and_with_order(size):
    w = torch.arange(float(size)) + 1
    same, last, swapped = w.clone(), w.clone(), w.clone()
    last[-1] += 0.5
    assert contract.fingerprint(w) == contract.fingerprint(same) != contract.fingerprint(last)
    if size > 1:
        swapped[0], swapped[-1] = w[-1], w[0]
        assert contract.fingerprint(swapped) != contract.fingerprint(w)
    assert contract.fingerprint(torch.ones(0)) == 0


def test_a_shard_that_changed_and_a_replica_that_is_none():
    def drift(ex, where, replicated=(), meant=False):
        weights = {"shard": torch.ones(4) * (ex.rank + 1), "norm": torch.ones(2)}
        watched = Fingerprints(ex, weights, replicated)
        watched.check()
        if where and (ex.rank == 1 or meant):
            weights[where][0] += 1
        if meant:
            watched.take()
        watched.check()
        return "fine"

    assert rehearse(2, lambda ex: drift(ex, "")) == ["fine", "fine"]
    assert rehearse(2, lambda ex: drift(ex, "norm", ["norm"], meant=True)) == ["fine", "fine"]
    assert raised(rehearse(2, lambda ex: drift(ex, "norm"))) == "weights changed: rank 1 ['norm']"
    assert "shard: rank 0" in raised(rehearse(2, lambda ex: drift(ex, "", ["shard"])))
    with pytest.raises(ValueError, match="replicated, and no weights here: bias"):
        Fingerprints(Exchange(dist.HashStore(), 0, 1), {}, ["bias"])


# --- what was compiled, and the warmup ---


def test_health_counts_what_a_block_compiles_and_has_each_break_by_its_reason():
    torch._dynamo.reset()

    def program(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    run, x = torch.compile(program, backend="eager", dynamic=False), torch.ones(3)
    with contract.compile_health() as first:
        run(x)
    with contract.compile_health() as steady:
        run(x), run(x)
    with contract.compile_health() as again, pytest.raises(KeyError):
        run(torch.ones(4))
        raise KeyError
    (why,) = set(first) - {"graphs", "breaks"}
    assert "graph_break()" in why and "\n" not in why
    assert first == again == {"graphs": 2, "breaks": 1, why: 1}
    assert steady == {"graphs": 0, "breaks": 0}


def test_breaks_of_equal_number_and_other_reasons_are_other_breaks():
    health = [{"graphs": 2, "breaks": 1, "break, print": 1}, {"graphs": 2, "breaks": 1, "break, log": 1}]
    said = raised(rehearse(2, lambda ex: alike(ex, "compile counts", health[ex.rank])))
    assert "break, print: rank 0 1, rank 1 (not set)" in said and "graphs" not in said


@pytest.mark.skipif(
    torch.__version__.startswith("2.11."),
    reason="torch 2.11 crashes by itself where a function is compiled again on another thread than before",
)
def test_a_warmup_ends_with_the_round_that_compiles_nothing():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    (steady,) = rehearse(1, lambda ex: contract.warm_up(ex, lambda: compiled(torch.ones(2))))
    assert len(steady) == 2
    (found,) = rehearse(1, lambda ex: contract.warm_up(ex, lambda: compiled(torch.ones(4)), rounds=1))
    assert (
        str(found) == "after 1 rounds of warmup rank 0 still compiled: TORCH_LOGS=recompiles names the guard"
    )
    with pytest.raises(ValueError, match="at least one round"):
        contract.warm_up(Exchange(dist.HashStore(), 0, 1), print, rounds=0)


def test_a_warmup_waits_for_the_slowest_to_prepare_and_a_budget_ends_it_on_all_ranks():
    def late(ex, **limits):
        return contract.warm_up(ex, lambda: None, prepare=lambda: time.sleep(0.3 * ex.rank), **limits)

    assert [len(seconds) for seconds in rehearse(2, late)] == [1, 1]
    said = raised(rehearse(2, lambda ex: late(ex, budget=0.1)))
    assert "may take 0.1 s; rank 1 took longest, 0." in said
    with pytest.raises(ValueError, match="has to be positive"):
        contract.warm_up(Exchange(dist.HashStore(), 0, 1), print, budget=0.0)


# --- preflight, watchdog ---


def test_what_cannot_be_sent_is_named_before_anybody_hears_of_it():
    for meta, tensors, says in (
        ({"ok": 1, "f": lambda: 1}, {}, r"meta 'f' \(function\) cannot be pickled"),
        ({"lock": threading.Lock()}, {}, r"meta 'lock' \(lock\) cannot be pickled"),
        (threading.Lock(), {}, "the metadata cannot be pickled"),
        ({}, {"x": [1.0]}, "tensor 'x' is a list, not a torch.Tensor"),
        ({}, {"x": torch.eye(2).to_sparse()}, "tensor 'x' is torch.sparse_coo: only dense tensors"),
        (
            {},
            {"x": torch.ones(2), "y": torch.ones(2, device="meta")},
            "tensor 'y' is on meta, and cpu was expected",
        ),
    ):
        with pytest.raises(contract.PreflightError, match=says):
            contract.preflight(meta, tensors)
    assert contract.preflight({"ok": 1}, {"x": torch.ones(2, 3).t()}).tensors[0].is_contiguous()


class Leader:
    """A store of a leader in another process: it goes on whatever holds this process up."""

    def __init__(self):
        self.stands = ()

    def check(self, keys):
        return True

    def get(self, key):
        return b"0" if key in self.stands else str(time.monotonic()).encode()

    def clone(self):
        return self


@pytest.mark.parametrize("key", ["heartbeat", "step"])
def test_a_worker_that_stood_still_is_no_silence_of_the_leader_and_a_leader_that_does_is(key):
    store, said = Leader(), []
    silent = threading.Event()
    lists = [torch.rand(1_000_000).tolist() for _ in range(4)]
    stop = contract.watchdog(store, 0.15, 0.15, on_silence=lambda why: (said.append(why), silent.set()))
    time.sleep(0.2)
    began = time.monotonic()
    for numbers in lists:
        numbers.sort()  # each is one call, which keeps Python's lock
    stood = time.monotonic() - began
    time.sleep(0.2)
    assert stood > 0.15, "too short to tell"
    assert not said
    store.stands = (key,)
    assert silent.wait(30)
    assert said == [f"the leader's {key} has not changed for 0.15 s"]
    stop()


def test_beats_keep_a_watchdog_quiet_until_they_stop_and_a_watchdog_that_is_stopped_stays_quiet():
    store, heard, stopped = dist.HashStore(), threading.Event(), threading.Event()
    stop_beats = contract.beat(store, every=0.02)
    assert store.check(["step", "heartbeat"]), "before the first beat, or a `get` would wait"
    first = store.get("heartbeat")
    deadline = time.monotonic() + 30
    while store.get("heartbeat") == first and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.get("heartbeat") != first
    contract.watchdog(store, window=2.0, on_silence=lambda why: heard.set())
    contract.watchdog(store, window=2.0, on_silence=lambda why: stopped.set())()
    stop_beats()
    assert heard.wait(30) and not stopped.is_set()


def test_bad_numbers_are_refused():
    for make in (
        lambda: contract.watchdog(dist.HashStore(), 0),
        lambda: contract.watchdog(dist.HashStore(), 1, -1),
        lambda: contract.beat(dist.HashStore(), -1),
        lambda: Exchange(dist.HashStore(), 0, 1, timeout=0),
        lambda: contract.crash_after(0).__enter__(),
        lambda: InputDigests(Exchange(dist.HashStore(), 0, 1), -1),
        lambda: Plan("infer", calls=-1),
    ):
        with pytest.raises(ValueError):
            make()
