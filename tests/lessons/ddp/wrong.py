"""Plausible wrong answers to the exercises of lesson 13, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


def _sum(model):
    works = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))

    def finish():
        while works:
            works.pop().wait()

    return finish


def _waits(model):
    def reduce(p):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(reduce)
    return lambda: None


def _afterwards(model):
    def finish():
        for p in model.parameters():
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)

    return finish


def _never_waits(model):
    works = []

    def reduce(p):
        p.grad /= dist.get_world_size()
        works.append(dist.all_reduce(p.grad, async_op=True))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(reduce)
    return lambda: dist.barrier()


def _nothing(model):
    return lambda: None


def _no_function(model):
    return None


def _first_half(model):
    works = []

    def reduce(p):
        p.grad /= dist.get_world_size()
        works.append(dist.all_reduce(p.grad, async_op=True))

    for p in list(model.parameters())[::2]:
        p.register_post_accumulate_grad_hook(reduce)

    def finish():
        while works:
            works.pop().wait()

    return finish


def _bucketed(model, most_bytes, copies=True, starts_anew=True, whole=False, single=False):
    buckets = [[]]
    for p in reversed(list(model.parameters())):
        held = sum(q.nbytes for q in buckets[-1])
        if buckets[-1] and not whole and (single or held + p.nbytes > most_bytes):
            buckets.append([])
        buckets[-1].append(p)
    missing, flying = [len(b) for b in buckets], []

    def arrived(i):
        missing[i] -= 1
        if missing[i] == 0:
            flat = torch.cat([p.grad.flatten() for p in buckets[i]]) / dist.get_world_size()
            flying.append((i, flat, dist.all_reduce(flat, async_op=True)))

    for i, bucket in enumerate(buckets):
        for p in bucket:
            p.register_post_accumulate_grad_hook(lambda p, i=i: arrived(i))

    def finish():
        for i, flat, work in flying:
            work.wait()
            parts = flat.split([p.numel() for p in buckets[i]])
            for p, part in zip(buckets[i], parts, strict=True):
                if copies:
                    p.grad.copy_(part.view_as(p))
            missing[i] = len(buckets[i]) if starts_anew else 0
        flying.clear()

    return finish


def _forgets_to_copy(model, most_bytes):
    return _bucketed(model, most_bytes, copies=False)


def _counts_once(model, most_bytes):
    return _bucketed(model, most_bytes, starts_anew=False)


def _one_bucket(model, most_bytes):
    return _bucketed(model, most_bytes, whole=True)


def _a_bucket_each(model, most_bytes):
    return _bucketed(model, most_bytes, single=True)


def _mean(losses):
    return losses.mean()


def _added_up(losses):
    return losses.sum()


def _each(losses):
    return losses


def _without_the_empty(losses):
    if not len(losses):
        return losses.sum()
    count = torch.tensor(float(len(losses)))
    dist.all_reduce(count)
    return losses.sum() * dist.get_world_size() / count


WRONG = {
    "ddp.one_by_one": {
        _sum: "DDP averages: divide by the number of ranks",
        _waits: "async_op=True returns a handle at once",
        _afterwards: "start it in the hook",
        _never_waits: "wait for every handle",
        _nothing: "each hook starts one",
        _no_function: "returns a function that is called after backward",
        _first_half: "each gradient is reduced once",
    },
    "ddp.buckets": {
        _forgets_to_copy: "what was reduced ends up in .grad again",
        _counts_once: "has to begin anew in the next",
        _one_bucket: "begin a new bucket where the next weight would not fit",
        _a_bucket_each: "put gradients together into one flat tensor",
    },
    "ddp.weigh": {
        _mean: "weigh each rank by its share of them",
        _added_up: "of equal batches the mean over a rank's images is right",
        _each: "returns one number to go back from",
        _without_the_empty: "the ranks wait for each other",
    },
}
