"""Plausible wrong answers to the exercises of lesson 06, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch

# --- streams.repair ---


def as_given(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    made.record()
    h = x @ w
    with side:
        made.wait()
        norm = h @ h
    h = torch.relu(x)
    y = h @ w
    here.wait_stream(side)
    return y + norm


def record_moved(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = x @ w
    made.record()
    with side:
        made.wait()
        norm = h @ h
    h = torch.relu(x)
    y = h @ w
    here.wait_stream(side)
    return y + norm


def record_of_the_owner(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = x @ w
    made.record()
    with side:
        made.wait()
        norm = h @ h
    h.record_stream(here)
    h = torch.relu(x)
    y = h @ w
    here.wait_stream(side)
    return y + norm


def owner_waits(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = x @ w
    made.record()
    with side:
        made.wait()
        norm = h @ h
    here.wait_stream(side)
    h = torch.relu(x)
    y = h @ w
    return y + norm


def host_waits(x, w):
    side = torch.Stream(x.device)
    h = x @ w
    torch.accelerator.synchronize()
    with side:
        norm = h @ h
    side.synchronize()
    h = torch.relu(x)
    return h @ w + norm


def one_stream(x, w):
    h = x @ w
    return torch.relu(x) @ w + h @ h


def leaves_norm_out(x, w):
    return torch.relu(x) @ w


def another_value(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = x @ w
    made.record()
    with side:
        made.wait()
        norm = h @ h
    r = torch.relu(h)
    y = r @ w
    here.wait_stream(side)
    return y + norm


def ends_on_the_side_stream(x, w):
    here, side = torch.accelerator.current_stream(), torch.Stream(x.device)
    h = x @ w
    side.wait_stream(here)
    with side:
        norm = h @ h
    h.record_stream(side)
    y = torch.relu(x) @ w
    side.wait_stream(here)
    with side:
        total = y + norm
    y.record_stream(side)
    return total


def y_on_the_side(x, w):
    here, side = torch.accelerator.current_stream(), torch.Stream(x.device)
    h = x @ w
    side.wait_stream(here)
    with side:
        r = torch.relu(x)
        y = r @ w
    norm = h @ h
    here.wait_stream(side)
    return y + norm


def into_norm_without_a_wait(x, w):
    here, side = torch.accelerator.current_stream(), torch.Stream(x.device)
    h = x @ w
    with side:
        norm = torch.empty_like(h)
        torch.mm(h, h, out=norm)
    h.record_stream(side)
    y = torch.relu(x) @ w
    here.wait_stream(side)
    return y + norm


def asks_the_event(x, w):
    here, side, made = torch.accelerator.current_stream(), torch.Stream(x.device), torch.Event()
    h = x @ w
    made.record()
    while not made.query():
        pass
    with side:
        norm = h @ h
    h.record_stream(side)
    y = torch.relu(x) @ w
    here.wait_stream(side)
    return y + norm


REPAIR = {
    ends_on_the_side_stream: "the caller reads what is returned",
    y_on_the_side: "belongs on the side stream",
    into_norm_without_a_wait: "let the second one's stream wait for it",
    asks_the_event: "look at the op that it names",
    as_given: "record it after the first op",
    record_moved: "the allocator knows one stream",
    record_of_the_owner: "Name the stream that still reads it",
    owner_waits: "a stream waits that need not",
    host_waits: "a synchronize blocks the host",
    one_stream: "keep `norm` in the block",
    leaves_norm_out: "the operators stay as they are given",
    another_value: "return what the given function returns",
}

# --- streams.traces ---


def read_as(**other):
    right = {
        "A": ("launches", "graph"),
        "B": ("call", "pin"),
        "C": ("kernels", "nothing"),
    }
    return right | other


def a_list():
    return ["launches", "call", "kernels"]


def a_word_of_its_own():
    return read_as(A=("latency", "graph"))


def all_are_full():
    return read_as(A=("room", "nothing"))


def the_copy_is_hidden():
    return read_as(B=("kernels", "nothing"))


def pinned_blocks_the_host():
    return read_as(C=("call", "pin"))


def a_graph_for_all():
    return read_as(B=("call", "graph"))


TRACES = {
    a_list: "with the letters A to C",
    a_word_of_its_own: "causes are 'room', 'launches'",
    all_are_full: "trace A: compare when",
    the_copy_is_hidden: "trace B: look for the longest",
    pinned_blocks_the_host: "trace C: which of the two streams",
    a_graph_for_all: "change for B",
}

# --- streams.races ---


def clocks(ops, mistake):
    """A race check with one mistake."""
    clock, events, host, told, used, races = {}, {}, {}, {}, [], set()

    def join(*known):
        return {s: max(one.get(s, -1) for one in known) for one in known for s in one}

    for i, (word, *rest) in enumerate(ops):
        if word == "record":
            if mistake == "live event":
                events[rest[0]] = clock.setdefault(rest[1], {})
            else:
                events[rest[0]] = dict(clock.get(rest[1], {}))
                if mistake == "not passed on":
                    events[rest[0]] = {s: n for s, n in events[rest[0]].items() if s == rest[1]}
        elif word == "wait" and mistake != "no waits":
            marks = events.get(rest[0], {})
            if mistake == "any record" and rest[0] not in events:
                later = [j for j, op in enumerate(ops) if op[:2] == ("record", rest[0])]
                if later:
                    marks = {ops[later[0]][2]: later[0]}
            mine = clock.get(rest[1], {})
            if mistake == "updates":
                clock[rest[1]] = {**mine, **marks}
            else:
                clock[rest[1]] = marks if mistake == "replaces" else join(mine, marks)
        elif word == "synchronize" and mistake != "no host":
            seen = clock.get(rest[0], {})
            if mistake == "own ops only":
                seen = {s: n for s, n in seen.items() if s == rest[0]}
            host = join(host, seen)
        elif word == "record_stream" and mistake != "no record_stream":
            if mistake == "last one told":
                told.pop(rest[0], None)
            told.setdefault(rest[0], []).append(rest[1])
        elif word in ("launch", "free"):
            if word == "free" and mistake == "no frees":
                continue
            stream, reads, writes = rest if word == "launch" else (rest[1], (), (rest[0],))
            known = join(host, clock.get(stream, {}))
            if mistake == "launch knows nothing":
                known = {}
            if word == "launch":
                mine = clock.setdefault(stream, {})
                mine |= {**known, stream: i}
            else:
                streams = told.pop(rest[0], ())
                if mistake == "all told" and streams:
                    streams = list(clock)
                clocks_told = [clock.get(other, {}) for other in streams]
                if mistake == "only what ran there":
                    clocks_told = [
                        {s: n for s, n in one.items() if s == other}
                        for other, one in zip(streams, clocks_told, strict=True)
                    ]
                known = join(known, *clocks_told)
                if mistake == "stream waits" and streams:
                    clock[stream] = known
            for j, other, read, written in reversed(used):
                conflict = set(writes) & {*read, *written} or set(reads) & set(written)
                if mistake == "two reads":
                    conflict = conflict or set(reads) & set(read)
                if conflict and j > known.get(other, -1):
                    races.add((j, i))
                    if mistake == "last read":
                        break
            used.append((i, stream, reads, writes))
    return races


def no_queue(ops):
    return clocks(ops, "launch knows nothing")


def two_reads(ops):
    return clocks(ops, "two reads")


def no_waits(ops):
    return clocks(ops, "no waits")


def last_read(ops):
    return clocks(ops, "last read")


def live_event(ops):
    return clocks(ops, "live event")


def any_record(ops):
    return clocks(ops, "any record")


def not_passed_on(ops):
    return clocks(ops, "not passed on")


def replaces(ops):
    return clocks(ops, "replaces")


def no_host(ops):
    return clocks(ops, "no host")


def no_frees(ops):
    return clocks(ops, "no frees")


def no_record_stream(ops):
    return clocks(ops, "no record_stream")


def all_told(ops):
    return clocks(ops, "all told")


def stream_waits(ops):
    return clocks(ops, "stream waits")


def updates(ops):
    return clocks(ops, "updates")


def own_ops_only(ops):
    return clocks(ops, "own ops only")


def last_one_told(ops):
    return clocks(ops, "last one told")


def only_what_ran_there(ops):
    return clocks(ops, "only what ran there")


def how_many(ops):
    return len(clocks(ops, ""))


def in_words(ops):
    return [f"{i} races with {j}" for i, j in clocks(ops, "")] or ["no race"]


RACES = {
    no_queue: "a stream is a queue",
    two_reads: "two reads of a buffer are no race",
    no_waits: "what comes after the wait in its queue",
    last_read: "not only with the last one",
    live_event: "keep a copy",
    any_record: "without one it does nothing",
    not_passed_on: "order is passed on",
    replaces: "take the larger number",
    no_host: "what the host has seen end",
    no_frees: "a free counts as a write",
    no_record_stream: "the allocator waits for what b holds",
    all_told: "speaks for the stream that it names",
    stream_waits: "guards the freed memory only",
    updates: "takes nothing away",
    own_ops_only: "what that stream had waited for",
    last_one_told: "may have several record_streams",
    only_what_ran_there: "includes the waits in it",
    how_many: "return a set of pairs",
    in_words: "return a set of pairs",
}


WRONG = {"streams.repair": REPAIR, "streams.traces": TRACES, "streams.races": RACES}
