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
    cap,
    copies=True,
    starts_anew=True,
    whole=False,
    single=False,
    forward=False,
    at_most=False,
    by_the_last_of_the_list=False,
    in_a_hook=None,
    size=None,
):
    buckets = [[]]
    for p in trainable(model) if forward else reversed(trainable(model)):
        held = sum(q.nbytes for q in buckets[-1])
        full = held + p.nbytes > cap if at_most else held >= cap
        if buckets[-1] and not whole and (single or full):
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


def _forgets_to_copy(model, cap):
    return _bucketed(model, cap, copies=False)


def _counts_once(model, cap):
    return _bucketed(model, cap, starts_anew=False)


def _one_bucket(model, cap):
    return _bucketed(model, cap, whole=True)


def _a_bucket_each(model, cap):
    return _bucketed(model, cap, single=True)


def _last_in_a_hook(model, cap):
    return _bucketed(model, cap, in_a_hook=0)


def _from_the_front(model, cap):
    return _bucketed(model, cap, forward=True)


def _at_most(model, cap):
    return _bucketed(model, cap, at_most=True)


def _by_the_last_of_the_list(model, cap):
    return _bucketed(model, cap, by_the_last_of_the_list=True)


def _two_for_the_world_in_buckets(model, cap):
    return _bucketed(model, cap, size=2)


def _by_arrival(model, cap):
    """Fills a bucket with what has arrived, and sends it once it is full."""
    held, in_flight = [], []
    weights = trainable(model)
    seen = []

    def send():
        flat = torch.cat([p.grad.flatten() for p in held]) / dist.get_world_size()
        in_flight.append((list(held), flat, dist.all_reduce(flat, async_op=True)))
        held.clear()

    def arrived(p):
        held.append(p)
        seen.append(p)
        if sum(q.nbytes for q in held) >= cap or len(seen) == len(weights):
            send()

    def finish():
        for bucket, flat, work in in_flight:
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad.copy_(part.view_as(p))
        in_flight.clear()
        seen.clear()

    for p in weights:
        p.register_post_accumulate_grad_hook(arrived)
    return finish


def _run(parts):
    return torch.nn.Sequential(*parts)


def _whole(layers, buckets, compiled):
    return compiled(layers)


def _each_layer(layers, buckets, compiled):
    return _run(compiled([layer]) for layer in layers)


def _at(layers, compiled, is_cut):
    parts = [[]]
    for i, layer in enumerate(layers):
        if parts[-1] and is_cut(i, layer):
            parts.append([])
        parts[-1].append(layer)
    return _run(compiled(part) for part in parts)


def _after_the_layer(layers, buckets, compiled):
    last = {id(bucket[-1]) for bucket in buckets}
    return _at(layers, compiled, lambda i, layer: any(id(p) in last for p in layers[i - 1].parameters()))


def _before_the_first_gradient(layers, buckets, compiled):
    first = {id(bucket[0]) for bucket in buckets}
    return _at(layers, compiled, lambda i, layer: any(id(p) in first for p in layer.parameters()))


def _forgets_the_others(layers, buckets, compiled):
    return compiled(layers[:2])


def _returns_parts(layers, buckets, compiled):
    return [compiled([layer]) for layer in layers]


def _throws_the_parts_away(layers, buckets, compiled):
    _at(layers, compiled, lambda i, layer: True)
    return _run(layers)


def _compiles_twice(layers, buckets, compiled):
    _at(layers, compiled, lambda i, layer: True)
    return compiled(layers)


def _leaves_one_outside(layers, buckets, compiled):
    return _run([*_at(layers[:-1], compiled, lambda i, layer: False), layers[-1]])


def _not_compiled(layers, buckets, compiled):
    return _run(layers)


def _jobs(**changed):
    right = {
        "A": ([0, 1], "one bucket", "bucket_cap_mb=1"),
        "B": ([1], "late rank", "load its input earlier"),
        "C": ([0, 1], "not compiled", "compile inside"),
        "D": ([0, 1], "fixed cost of each message", "bucket_cap_mb=25"),
    }
    return right | changed


def _rank_0_is_slow():
    return _jobs(B=([0], "late rank", "load its input earlier"))


def _one_graph():
    return _jobs(A=([0, 1], "one graph", 'optimize_ddp="ddp_optimizer"'))


def _the_same_bucket():
    return _jobs(A=([0, 1], "one bucket", "bucket_cap_mb=25"))


def _late_too():
    return _jobs(C=([1], "late rank", "load its input earlier"))


def _graphs_cost():
    return _jobs(D=([0, 1], "one graph", "bucket_cap_mb=1"))


def _a_word():
    return _jobs(C=([0, 1], "Sequential", "compile inside"))


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
        _one_bucket: "begin a new bucket as soon as",
        _a_bucket_each: "put gradients together into one flat tensor",
        _last_in_a_hook: "start it in the hook",
        _from_the_front: "go through reversed(list(model.parameters()))",
        _at_most: "go through reversed(list(model.parameters()))",
        _by_arrival: "go through reversed(list(model.parameters()))",
        _by_the_last_of_the_list: "the parameters that require a gradient",
        _two_for_the_world_in_buckets: "look for a number that is dist.get_world_size()",
    },
    "ddp.cuts": {
        _whole: "has to begin, in forward, with the layer of that weight",
        _each_layer: "any other only costs a graph",
        _after_the_layer: "has to begin, in forward, with the layer of that weight",
        _before_the_first_gradient: "any other only costs a graph",
        _forgets_the_others: "together they have all layers",
        _throws_the_parts_away: "together they have all layers",
        _compiles_twice: "has to begin, in forward, with the layer of that weight",
        _leaves_one_outside: "together they have all layers",
        _returns_parts: "returns a function of x",
        _not_compiled: "compiles a list of layers as one graph",
    },
    "ddp.jobs": {
        _rank_0_is_slow: "on which ranks would you change something",
        _one_graph: "compare the number of graphs with the number of messages",
        _the_same_bucket: "a change that does not touch it",
        _late_too: "compare all lines of one rank with those of job A",
        _graphs_cost: "messages of what sizes are there",
        _a_word: "one of 'one bucket', 'one graph'",
    },
}
