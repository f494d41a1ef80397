"""Plausible wrong answers to the exercises of lesson 13, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def _sum(model):
    works = []
    for p in trainable(model):
        p.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))

    def finish():
        while works:
            works.pop().wait()

    return finish


def _waits(model):
    def reduce(p):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)

    for p in trainable(model):
        p.register_post_accumulate_grad_hook(reduce)
    return lambda: None


def _afterwards(model):
    def finish():
        for p in trainable(model):
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)

    return finish


def _never_waits(model):
    works = []

    def reduce(p):
        p.grad /= dist.get_world_size()
        works.append(dist.all_reduce(p.grad, async_op=True))

    for p in trainable(model):
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

    for p in trainable(model)[::2]:
        p.register_post_accumulate_grad_hook(reduce)

    def finish():
        while works:
            works.pop().wait()

    return finish


def _flying(model, hooks, ends):
    """Hooks by `hooks(start)`; the function that calls `ends(start)` after backward and waits for all."""
    works = []

    def start(p, size=None):
        p.grad /= size or dist.get_world_size()
        works.append(dist.all_reduce(p.grad, async_op=True))

    hooks(start)

    def finish():
        ends(start)
        while works:
            works.pop().wait()

    return finish


def _all_in_the_last_hook(model):
    arrived, weights = [], trainable(model)

    def hooks(start):
        def note(p):
            arrived.append(p)
            if len(arrived) == len(weights):
                for q in arrived:
                    start(q)
                arrived.clear()

        for p in weights:
            p.register_post_accumulate_grad_hook(note)

    return _flying(model, hooks, lambda start: None)


def _one_in_a_hook(model):
    first, *others = trainable(model)
    return _flying(model, first.register_post_accumulate_grad_hook, lambda start: [start(p) for p in others])


def _two_for_the_world(model):
    def hooks(start):
        for p in trainable(model):
            p.register_post_accumulate_grad_hook(lambda p: start(p, 2))

    return _flying(model, hooks, lambda start: None)


def _not_a_number(model):
    finish = _flying(
        model,
        lambda start: [p.register_post_accumulate_grad_hook(start) for p in trainable(model)],
        lambda start: None,
    )

    def spoilt():
        finish()
        for p in trainable(model):
            p.grad *= float("nan")

    return spoilt


def _frozen_too(model):
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: None)


def _future_in_the_hook(model):
    def reduce(p):
        p.grad /= dist.get_world_size()
        torch.futures.wait_all([dist.all_reduce(p.grad, async_op=True).get_future()])

    for p in trainable(model):
        p.register_post_accumulate_grad_hook(reduce)
    return lambda: None


def _future_forgotten(model):
    futures = []

    def reduce(p):
        p.grad /= dist.get_world_size()
        futures.append(dist.all_reduce(p.grad, async_op=True).get_future())

    for p in trainable(model):
        p.register_post_accumulate_grad_hook(reduce)
    return lambda: futures.clear()


def _bucketed(
    model,
    most_bytes,
    copies=True,
    starts_anew=True,
    whole=False,
    single=False,
    forward=False,
    first_fit=False,
    by_the_last_of_the_list=False,
    in_a_hook=None,
    size=None,
):
    buckets = [[]]
    for p in trainable(model) if forward else reversed(trainable(model)):
        fits = [b for b in buckets if sum(q.nbytes for q in b) + p.nbytes <= most_bytes]
        if first_fit and fits:
            fits[0].append(p)
            continue
        held = sum(q.nbytes for q in buckets[-1])
        if buckets[-1] and not whole and (single or held + p.nbytes > most_bytes):
            buckets.append([])
        buckets[-1].append(p)
    missing, flying = [len(b) for b in buckets], []

    def go(i):
        flat = torch.cat([p.grad.flatten() for p in buckets[i]]) / (size or dist.get_world_size())
        flying.append((i, flat, dist.all_reduce(flat, async_op=True)))

    def arrived(i):
        missing[i] -= 1
        if missing[i] == 0 and in_a_hook in (None, i):
            go(i)

    for i, bucket in enumerate(buckets):
        for p in bucket[-1:] if by_the_last_of_the_list else bucket:
            if by_the_last_of_the_list:
                p.register_post_accumulate_grad_hook(lambda p, i=i: go(i))
            else:
                p.register_post_accumulate_grad_hook(lambda p, i=i: arrived(i))

    def finish():
        for i in range(len(buckets)):
            if in_a_hook not in (None, i):
                go(i)
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


def _last_in_a_hook(model, most_bytes):
    return _bucketed(model, most_bytes, in_a_hook=0)


def _from_the_front(model, most_bytes):
    return _bucketed(model, most_bytes, forward=True)


def _first_fit(model, most_bytes):
    return _bucketed(model, most_bytes, first_fit=True)


def _by_the_last_of_the_list(model, most_bytes):
    return _bucketed(model, most_bytes, by_the_last_of_the_list=True)


def _two_for_the_world_in_buckets(model, most_bytes):
    return _bucketed(model, most_bytes, size=2)


def _mean(losses):
    return losses.mean()


def _twice_the_share(losses):
    images = torch.tensor(float(len(losses)))
    dist.all_reduce(images)
    return losses.sum() * 2 / images


def _early_return(losses):
    if not len(losses):
        return losses.sum()
    images = torch.tensor([float(len(losses))] * 1000)
    dist.all_reduce(images)
    return losses.sum() * dist.get_world_size() / images[0]


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
        _no_function: "the parameters that require a gradient",
        _first_half: "each gradient is reduced once",
        _not_a_number: "each gradient is reduced once",
        _all_in_the_last_hook: "of its own gradient, and of no other",
        _one_in_a_hook: "start it in the hook",
        _two_for_the_world: "look for a number that is dist.get_world_size()",
        _frozen_too: "the parameters that require a gradient",
        _future_in_the_hook: "async_op=True returns a handle at once",
        _future_forgotten: "wait for every handle",
    },
    "ddp.buckets": {
        _forgets_to_copy: "what was reduced ends up in .grad again",
        _counts_once: "has to begin anew in the next",
        _one_bucket: "begin a new bucket where the next weight would not fit",
        _a_bucket_each: "put gradients together into one flat tensor",
        _last_in_a_hook: "start it in the hook",
        _from_the_front: "go through reversed(list(model.parameters()))",
        _first_fit: "go through reversed(list(model.parameters()))",
        _by_the_last_of_the_list: "the parameters that require a gradient",
        _two_for_the_world_in_buckets: "look for a number that is dist.get_world_size()",
    },
    "ddp.weigh": {
        _mean: "weigh each rank by its share of them",
        _added_up: "of equal batches the mean over a rank's images is right",
        _each: "returns one number to go back from",
        _without_the_empty: "the ranks wait for each other",
        _early_return: "as many bytes",
        _twice_the_share: "look for a number that is dist.get_world_size()",
    },
}
