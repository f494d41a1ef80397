"""Where DDP waits for its gradients, on hand-written ranges and in real backwards over gloo."""

from __future__ import annotations

import pytest
from oddrank.record.profile import RawEvent
from oddrank.record.reducer import AUTOGRAD, COPY, FORWARD, WAIT
from oddrank.record.segments import partition
from oddrank.record.timeline import tidy

MAIN, GLOO, GLOO_2 = 1, 7, 8
# a step of 1000 ns: forward, a backward whose hooks start two all-reduces, and an optimizer from 600 on
BACKWARD = [
    ("oddrank.record", 0, 2000), ("oddrank.step", 0, 1000), (FORWARD, 10, 50), (f"{AUTOGRAD}: MmBackward0", 100, 200),
    ("aten::mm", 110, 190), (f"{AUTOGRAD}: torch::autograd::AccumulateGrad", 210, 240), ("c10d::allreduce_", 220, 230),
    (f"{AUTOGRAD}: torch::autograd::AccumulateGrad", 250, 280), ("c10d::allreduce_", 260, 270),
]  # fmt: skip
COPIED = [("aten::as_strided", 400, 402), (COPY, 403, 410), ("aten::copy_", 404, 409), (COPY, 500, 510)]
OPTIMIZER = [("Optimizer.step#SGD.step", 600, 700), ("aten::add_", 610, 690)]
# the second all-reduce is over when its copy begins, and its range ends long after that
TRANSFERS = [("gloo:all_reduce", 225, 390, GLOO), ("gloo:all_reduce", 265, 1300, GLOO_2)]


def made(ranges: list[tuple[str, int, int]]) -> list[RawEvent]:
    raw = [RawEvent(name, start, end, MAIN) for name, start, end in ranges]
    return raw + [RawEvent(name, start, end, thread, is_async=True) for name, start, end, thread in TRANSFERS]


def taken(raw: list[RawEvent], kind: str) -> list[tuple[str, int, int]]:
    return [(e.name, e.start, e.end) for e in tidy(raw) if e.kind == kind]


def test_waiting_for_buckets_is_a_wait_and_ends_their_transfers():
    raw = made([*BACKWARD, *COPIED, *OPTIMIZER])
    assert taken(raw, "wait") == [(WAIT, 280, 400), (WAIT, 410, 500)]
    assert taken(raw, "transfer") == [("gloo:all_reduce", 225, 390), ("gloo:all_reduce", 265, 500)]
    assert len(taken(raw, "collective")) == 2, "waiting is no collective"
    segments = partition(tidy(raw))
    spent = {k: sum(s.end - s.start for s in segments if s.kind == k) for k in ("collective", "python")}
    assert spent["collective"] == 10 + 10 + (400 - 280) + (500 - 410)
    assert sum(s.end - s.start for s in segments) == 1000


def test_gradients_that_are_views_of_buckets_are_waited_for_until_the_program_goes_on():
    raw = made([*BACKWARD, *OPTIMIZER])
    assert taken(raw, "wait") == [(WAIT, 280, 600)]
    assert [end for _, _, end in taken(raw, "transfer")] == [390, 600]


def test_the_end_of_the_step_ends_the_waiting_too():
    raw = made([*BACKWARD])
    assert taken(raw, "wait") == [(WAIT, 280, 1000)]
    assert [end for _, _, end in taken(raw, "transfer")] == [390, 1000]


@pytest.mark.parametrize("hidden", [FORWARD, AUTOGRAD])
def test_a_transfer_of_anybody_else_keeps_its_end(hidden):
    raw = made([r for r in [*BACKWARD, *OPTIMIZER] if not r[0].startswith(hidden)])
    assert not taken(raw, "wait") and [end for _, _, end in taken(raw, "transfer")] == [390, 1300]


def test_each_backward_has_waits_of_its_own():
    later = [(name, start + 1000, end + 1000) for name, start, end in [*BACKWARD[2:], *COPIED, *OPTIMIZER]]
    raw = made([*BACKWARD, *COPIED, *OPTIMIZER, *later])
    raw.append(RawEvent("gloo:all_reduce", 1225, 1450, GLOO, is_async=True))
    assert taken(raw, "wait") == [(WAIT, 280, 400), (WAIT, 410, 500), (WAIT, 1280, 1400)]
    assert [end for _, _, end in taken(raw, "transfer")] == [390, 500, 1450]


def train(views: bool, steps: int = 3) -> tuple[int, int, int, int]:
    """Transfers whose range ends after their step, raw and tidy; buckets a step; steps with a wait."""
    import time

    import torch
    import torch.distributed as dist
    from oddrank.record.profile import BODY, STEP, Profile

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02, gradient_as_bucket_view=views)
    slow = [False]

    def reduce(state, bucket):
        """An all-reduce whose thread is busy after the gradients have been handed over, as on a full machine."""
        whole = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        handed_over = whole.then(lambda done: done.value()[0])
        if slow[0]:
            whole.add_done_callback(lambda _: time.sleep(0.1))
        return handed_over

    ddp.register_comm_hook(None, reduce)
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.ones(8, 64)

    def step() -> None:
        optimizer.zero_grad()
        ddp(x).sum().backward()
        optimizer.step()

    step(), step()  # DDP orders its buckets anew after the first
    slow[0] = True
    profile = Profile()
    profile.start()
    with profile.mark(BODY):
        for _ in range(steps):
            with profile.mark(STEP):
                step()
    raw = profile.stop()
    marks = sorted((e.start, e.end) for e in raw if e.name == STEP)

    def late(ranges) -> int:
        return sum(any(begin <= r.start < end < r.end for begin, end in marks) for r in ranges)

    found = tidy(raw)
    calls = [e for e in found if e.kind == "collective"]
    waited = {e.forward for e in found if e.name == WAIT}
    return (
        late(e for e in raw if e.name.startswith("gloo:")),
        late(e for e in found if e.kind == "transfer"),
        len(calls) // steps,
        len(waited),
    )


@pytest.mark.parametrize("views", [False, True])
def test_in_a_real_training_step_no_transfer_outlasts_the_step_that_waited_for_it(ranks, views):
    for raw, tidied, buckets, waited in ranks.run(train, views).values():
        assert raw > 0, "nothing was late, so nothing was tested"
        assert tidied == 0 and buckets > 1 and waited > 0
