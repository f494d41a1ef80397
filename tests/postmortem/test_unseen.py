"""Jobs that no rule was written for: old records, processes without a rank, waits outside of collectives, threads."""

from __future__ import annotations

from postmortem_files import dump, entry, told

GLOO = "gloo:all_reduce"


def said(found) -> str:
    return "\n".join(map(str, [found.head, *found.chain]))


def failed(rank: int, line: int, text: str) -> str:
    """What a rank prints under torchrun where an error ends it."""
    lines = (
        "Traceback (most recent call last):",
        f'  File "/a/train.py", line {line}, in step',
        f"RuntimeError: {text}",
    )
    return "".join(f"[rank{rank}]: {one}\n" for one in lines)


TIMEOUT = (
    "[/a/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
)
CLOSED = "[/a/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2344."


def test_a_record_of_the_start_is_not_compared_with_those_of_the_end(tmp_path):
    """Rank 1 wrote its record once, at the start; the others wrote theirs when the sixth call failed."""
    for rank in (0, 2):
        calls = [entry(n, op=GLOO, line=20 if n < 6 else 30) for n in range(1, 7)]
        dump(tmp_path, rank, calls, {"0": range(3)})
        (tmp_path / f"log_{rank}.txt").write_text(failed(rank, 30, TIMEOUT))
    dump(tmp_path, 1, [entry(n, op=GLOO, line=20) for n in (1, 2)], {"0": range(3)})
    found, held = told(tmp_path)
    assert (found.kind, found.ranks, list(held.older)) == ("waiting", [1], [1])
    assert (
        "ranks 0, 2 wait in all_reduce([1024] Float) number 6 of default_pg at train.py:30 in step"
        in said(found)
    )
    assert "number 3" not in said(found) and "nothing here says" in str(found.head)
    assert any(text.startswith("the record of rank 1") and "number 2" in text for text in found.unknown)
    # what its log says counts on: it was cut off, in a call that no record shows
    (tmp_path / "log_1.txt").write_text(failed(1, 44, CLOSED))
    found, _ = told(tmp_path)
    assert "what rank 1 called, no record shows" in str(found.head) and "train.py:44" in said(found)


def test_a_record_that_ends_at_the_same_moment_is_compared(tmp_path):
    """The rank made another call later than the others' sixth: its record is of the end, and it left that call out."""
    for rank in (0, 2):
        dump(tmp_path, rank, [entry(n, op=GLOO) for n in range(1, 8)], {"0": range(3)})
        (tmp_path / f"log_{rank}.txt").write_text(failed(rank, 10, TIMEOUT))
    late = entry(1, op=GLOO, group="1", desc="loss", line=50, time_created_ns=entry(9)["time_created_ns"])
    dump(tmp_path, 1, [*(entry(n, op=GLOO) for n in range(1, 6)), late], {"0": range(3)})
    found, held = told(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq, held.older) == ("difference", [1], 6, {})


def test_a_call_that_has_not_ended_is_a_difference(tmp_path):
    """With calls in flight the others are further, too; the first one that is open is the one that the rank left out."""
    for rank in (0, 2):
        calls = [entry(n, op=GLOO, done=n < 5) for n in range(1, 8)]
        dump(tmp_path, rank, calls, {"0": range(3)})
    dump(tmp_path, 1, [entry(n, op=GLOO) for n in range(1, 5)], {"0": range(3)})
    found, _ = told(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [1], 5)


def test_a_compile_that_one_rank_alone_made(tmp_path):
    head = "[rank{0}]:I1128 07:29:3{1}.0 7 torch/_dynamo/symbolic_convert.py:53] [{2}] Step 1: torchdynamo "
    end = "[rank{0}]:I1128 07:29:35.0 7 torch/_dynamo/pgo.py:985] [{1}] put_code_state: no cache key, skipping\n"
    for rank in (0, 1):
        text = head.format(rank, 1, "0/0") + "start tracing step /a/net.py:4\n"
        text += head.format(rank, 2, "0/0") + "done tracing step\n" + end.format(rank, "0/0")
        text += "" if rank else head.format(0, 3, "2/0") + "start tracing resume_in_step /a/net.py:6\n"
        text += (
            "" if rank else head.format(0, 4, "2/0") + "done tracing resume_in_step\n" + end.format(0, "2/0")
        )
        (tmp_path / f"log_{rank}.txt").write_text(text + failed(rank, 9, TIMEOUT if rank else CLOSED))
    found, _ = told(tmp_path)
    assert (
        found.kind == "waiting"
        and "rank 0's last compile is [2/0] net.py:6 in resume_in_step, which rank 1 did not" in said(found)
    )
