"""A trace is data from outside: whatever is in it, `read` ends with tables or a sentence, in bounded memory."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from oddrank.record import Tables, read
from oddrank.record.trace_log import MOST_BODY, MOST_BYTES, MOST_HEAD

from oddrank import command

START = "V0101 00:00:00.000000 1 torch/_dynamo/x.py:1] "
LINE = 5  # of the operator in `GRAPH`
GRAPH = f"""class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[4]"):
        l_x_ = L_x_

         # File: /home/ada/model.py:{LINE} in step, code: return x.sin()
        sin: "f32[4]" = l_x_.sin();  l_x_ = None
        return (sin,)
"""
REPORT = """Graph break in user code at /home/ada/model.py:6
Graph Break Reason: Call to `torch._dynamo.graph_break()`
  Explanation: It was asked for.
  Hint: Remove it.
User code traceback:
  File "/home/ada/model.py", line 6, in step
    torch._dynamo.graph_break()
"""
METRICS = {
    "compile_id": "0/0",
    "co_name": "step",
    "co_filename": "/home/ada/model.py",
    "co_firstlineno": 4,
    "guard_count": 3,
    "graph_op_count": 1,
    "entire_frame_compile_time_s": 0.25,
    "backend_compile_time_s": 0.125,
    "fail_type": None,
    "has_guarded_code": True,
}
KERNELS = "# Topologically Sorted Source Nodes: [sin], Original ATen: [aten.sin]\n    cpp_fused_sin_0(arg0_1, buf0)\n"


def entry(kind: str, said: Any, text: str | None = None, **more: Any) -> str:
    """One entry, as torch writes it."""
    head = {kind: said} | {"rank": 0, "frame_id": 0, "frame_compile_id": 0, "attempt": 0} | more
    if text is not None:
        head["has_payload"] = f"{hash(text) & 0xFFFFFFFF:032x}"
    lines = [
        START + json.dumps(head),
        *(["\t" + line for line in text.split("\n")] if text is not None else []),
    ]
    return "\n".join(lines) + "\n"


def artifact(name: str, text: str, **more: Any) -> str:
    return entry("artifact", {"name": name, "encoding": "string"}, text, **more)


def whole(number: int = 0, again: int = 0) -> list[str]:
    """The entries of one compile, of every kind that is read."""
    at = {"frame_id": number, "frame_compile_id": again}
    return [
        entry("str", ["/home/ada/model.py", 0], **at),
        entry(
            "dynamo_start",
            {"stack": [{"line": 4, "name": "step", "filename": 0, "loc": "def step(x):"}]},
            **at,
        ),
        artifact(
            "recompile_reasons",
            "[\"0/0: tensor 'x' size mismatch  # return x  # /home/ada/model.py:5 in step\"]",
            **at,
        ),
        entry("dynamo_output_graph", {"sizes": {}}, GRAPH, **at),
        entry("aot_forward_graph", {}, GRAPH, **at),
        entry("optimize_ddp_split_graph", {}, GRAPH, **at),
        entry("optimize_ddp_split_child", {"name": "submod_0"}, GRAPH, **at),
        entry("inductor_output_code", {"filename": "/home/ada/x.py"}, KERNELS, **at),
        artifact(
            "inductor_provenance_tracking_kernel_stack_traces",
            json.dumps({"cpp_fused_sin_0:1": ['File "/home/ada/model.py", line 5, in step']}),
            **at,
        ),
        artifact("fx_graph_cache_miss", "{}", **at),
        artifact("dynamo_graph_break_reason", REPORT, **at),
        entry("compilation_metrics", METRICS, **at),
        entry("bwd_compilation_metrics", {"duration_us": 5}, **at),
    ]


def tables(folder: Path, content: str | bytes) -> Tables:
    """What is read of a folder that holds this trace."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    folder.joinpath("trace_rank_0_x.log").write_bytes(data)
    return read(folder)


def summary(found: Tables, compile: str) -> list[Any]:
    """All that was found out about one compile."""
    row = next(one for one in found.compiles if one.id == compile)
    return [row, *(mark for mark in found.marks if mark.compile == compile)]


def test_an_entry_that_is_wrong_costs_itself_alone(tmp_path):
    """Each value of each entry is replaced by each wrong one; another compile in the file is not touched by it."""
    right = summary(tables(tmp_path, "".join(whole() + whole(1))), "1/0")
    assert {mark.kind for mark in right[1:]} == {"op", "break", "kernel", "recompile"}
    wrong = (
        None,
        True,
        -1,
        10**400,
        float("nan"),
        float("inf"),
        "\x1b[31m\ud800",
        "9" * 5000,
        [],
        {},
        [[]],
        [None],
        {"": {}},
    )

    def variants(value: Any):
        """A JSON value with one of its parts replaced."""
        yield from wrong
        if isinstance(value, dict):
            for key, part in value.items():
                yield from ({**value, key: other} for other in variants(part))
                yield {name: other for name, other in value.items() if name != key}
        if isinstance(value, list):
            for i, part in enumerate(value):
                yield from ([*value[:i], other, *value[i + 1 :]] for other in variants(part))

    count, noted = 0, 0
    draw = random.Random(1)
    for place, text in enumerate(whole()):
        head, newline, body = text.partition("\n")
        said = json.loads(head.removeprefix(START))
        kept = {key: said[key] for key in ("frame_id", "frame_compile_id")}
        for changed in variants(said):
            if not isinstance(changed, dict) or (draw.random() > 0.25 and len(changed) == len(said)):
                continue
            for part in (changed, changed | kept):
                one = START + json.dumps(part) + newline + body
                found = tables(tmp_path, "".join([*whole()[:place], one, *whole()[place + 1 :], *whole(1)]))
                count += 1
                noted += any("malformed" in note for note in found.notes)
                mine = summary(found, "1/0")
                # a file's name is the one that was written last
                assert mine[0].outcome == "graph" and [m.kind for m in mine[1:]] == [
                    m.kind for m in right[1:]
                ]
                json.dumps(found.marks.dicts() + found.compiles.dicts(), allow_nan=False)
                assert command.main(["tables", str(tmp_path)]) == 0
    assert count > 500 and noted > 100


def test_the_terminal_is_not_commanded_by_names_of_a_trace(tmp_path, capfd):
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\r\ud800"
    text = "".join(whole()).replace("/home/ada/model.py", json.dumps(f"/home/{evil}.py")[1:-1])
    text = text.replace('"step"', json.dumps(evil)).replace("asked for", evil).replace("graph_break()", evil)
    name = tmp_path / f"rank_0{evil[:-1]}.log"
    name.write_bytes((text + START + '{"str"\n').encode("utf-8", "surrogatepass"))
    for arguments in ([], ["--operators"], ["--json"], ["--rank", "7"]):
        command.main(["tables", str(tmp_path), *arguments])
    command.main(["tables", str(tmp_path / evil[:-1])])
    said = capfd.readouterr()
    assert "unfinished" in said.out or "graph" in said.out
    assert not [c for c in said.out + said.err if not c.isprintable() and c != "\n"]


def test_a_trace_that_was_cut_anywhere_is_read_up_to_there(tmp_path):
    """As a job leaves it that was killed: what had ended is there, and the compile that had not is marked."""
    first, second = (
        "".join(whole(0, 1)),
        "".join(whole(0, 12)).replace('"guard_count": 3', '"guard_count": 4'),
    )
    right = summary(tables(tmp_path, first), "0/1")
    draw = random.Random(2)
    ends = {0, len(second) - 1, *(draw.randrange(len(second)) for _ in range(150))}
    ends |= {found.end() for found in re.finditer('"frame_compile_id": 1', second)}  # of 12
    for end in sorted(ends):
        found = tables(tmp_path, first + second[:end])
        assert summary(found, "0/1") == right
        rest = [row for row in found.compiles if row.id == "0/12"]
        if rest and rest[0].outcome == "unfinished":
            assert [m.kind for m in found.marks if m.compile == "0/12"].count("unfinished") == 1
        if end < second.index('"compilation_metrics"'):
            assert not rest or rest[0].outcome == "unfinished"


def test_bytes_that_were_damaged_are_read_or_left_out(tmp_path):
    draw = random.Random(3)
    content = "".join(whole() + whole(1)).encode()
    for _ in range(400):
        data = bytearray(content)
        for _ in range(draw.choice((1, 5, 50))):
            at, size = draw.randrange(len(data)), draw.choice((1, 1, 20, 300))
            piece = draw.choice(
                (bytes(size), draw.randbytes(size), data[at : at + size] * 2, b"", b"\nV", b'"', b"\n")
            )
            data[at : at + size] = piece
        try:
            found = tables(tmp_path, bytes(data))
        except ValueError as error:
            assert "has no trace of a compile" in str(error)
            continue
        json.dumps(found.marks.dicts() + found.compiles.dicts(), allow_nan=False)


SLOW_LINES = {
    "a place": "# " + "File: a:1 in " * 40_000,
    "a frame": '  File "' + 'a", line 1, in ' * 40_000,
    "an error": "User code traceback:\nfollowing user code:\n"
    + "Limit" * 60_000
    + "\n"
    + "Developer debug context: " * 9_000,
    "an object": "<function a" * 200_000,
    "a name": "<function " + "a<" * 100_000,
    "a collective": "x = torch.ops._c10d_functional" + "(" * 100_000 + ", '" * 50_000,
    "collectives": "torch.ops._c10d_functional.a(" * 20_000,
    "a string": 'x: "f32[4]" = f(' + "'\\" * 100_000,
    "spaces": "x" + " " * 200_000 + "= y" + " " * 200_000,
    "brackets": "x[" + "]" * 200_000 + " = " + "=" * 100_000,
    "a kernel": " " * 100_000 + "cpp_" + "a" * 100_000 + " = " * 1000,
    "guards": "#" + " #:1" * 60_000,
}


@pytest.mark.parametrize("what", SLOW_LINES)
def test_no_text_takes_more_than_time_in_proportion(tmp_path, what):
    """Each is a text on which a pattern that looks back takes hours: the processor's limit is minutes."""
    lines = SLOW_LINES[what]
    text = GRAPH.replace("        return", f"         {lines}\n        return")
    entries = whole()
    entries[2] = artifact("recompile_reasons", lines)
    for i, kind in (
        (3, "dynamo_output_graph"),
        (4, "aot_forward_graph"),
        (5, "optimize_ddp_split_graph"),
        (7, "inductor_output_code"),
    ):
        entries[i] = entry(kind, {}, text)
    entries[10] = artifact("dynamo_graph_break_reason", REPORT + lines + REPORT.replace("It was", lines))
    tmp_path.joinpath("rank_0.log").write_text("".join(entries))
    run_limited(tmp_path, cpu_s=60)


def run_limited(folder: Path, cpu_s: int = 600, megabytes: int | None = None) -> Any:
    """Read a folder in a process of its own, which ends where it takes more of the processor; returns what it found."""
    code = """if True:
        import json, re, resource, sys
        from pathlib import Path
        resource.setrlimit(resource.RLIMIT_CPU, 2 * (int(sys.argv[2]),))
        from oddrank.record import read
        found = read(sys.argv[1])
        # not ru_maxrss, which begins with that of the process that started this one
        peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
        print(json.dumps([peak, [row.id for row in found.compiles], found.notes]))
    """
    command = [sys.executable, "-c", code, str(folder), str(cpu_s)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, *rest = json.loads(done.stdout)
    assert megabytes is None or peak < megabytes
    return rest


def test_sizes_are_limited_and_so_is_memory(tmp_path):
    """A head of 100 MB, an entry and a file of more than is read, and a million entries."""
    log = tmp_path / "rank_0.log"
    with log.open("wb") as file:
        file.write("".join(whole()).encode())
        file.write(f'{START}{{"dynamo_start": "'.encode() + b"x" * 100_000_000 + b'", "frame_id": 0}\n')
        file.write(
            f'{START}{{"compilation_metrics": "'.encode() + b"x" * 2 * MOST_HEAD + b'", "frame_id": 0}\n'
        )
        file.write(entry("dynamo_start", {"stack": "[" * 100_000}).encode())
        file.write(f'{START}{{"dynamo_start": {"[" * 100_000}\n'.encode())
        frame = {"line": 4, "name": "f", "filename": 0, "loc": "x" * 2 * MOST_HEAD}
        file.write(entry("dynamo_start", {"stack": [frame]}, frame_id=3).encode())
        file.write("".join(whole(1)).encode())
        file.write(entry("aot_forward_graph", {}, "x").encode())
        file.seek(2 * MOST_BYTES)  # a hole: zeros without end
        file.write(b"\n" + "".join(whole(2)).encode())
    ids, notes = run_limited(tmp_path, megabytes=(MOST_BODY + MOST_HEAD >> 20) * 3 + 100)
    assert "1/0" in ids and not {"2/0", "3/0"} & set(ids)  # beyond what is read of a file, and of an entry
    assert any("malformed" in note for note in notes) and any(
        "the first 1024 were read" in note for note in notes
    )
    with log.open("w") as file:
        for i in range(250_000):
            file.write(entry("str", ["/home/ada/model.py", i]))
            file.write(
                entry("dynamo_start", {"stack": [{"line": 4, "name": "f", "filename": 0}]}, frame_id=i)
            )
            file.write(artifact("fx_graph_cache_hit", "", frame_id=i))
            file.write(artifact("dynamo_graph_break_reason", REPORT, frame_id=i))
    ids, notes = run_limited(tmp_path, megabytes=600)
    assert len(ids) == 20_000 and any("only the first 20000 compiles" in note for note in notes)


def test_names_of_files_that_never_end_are_not_read(tmp_path):
    """A program's file may be a device, a pipe, a folder, or what the system invents."""
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "long.py").write_text("x = 1\n" * 1_000_000)
    names = [
        "/dev/zero",
        "/dev/stdin",
        "/proc/kmsg",
        "/proc/self/mem",
        "\0",
        "\ud800",
        "a" * 100_000,
        "",
        ".",
    ]
    names += [str(tmp_path / name) for name in ("pipe.py", "folder.py", "zero.py", "long.py")]
    text = []
    for i, name in enumerate(names):
        text += [entry("str", [name, i])]
        text += [entry("dynamo_start", {"stack": [{"line": 4, "name": "f", "filename": i}]}, frame_id=i)]
        text += [entry("compilation_metrics", METRICS, frame_id=i)]
    tmp_path.joinpath("rank_0.log").write_text("".join(text))
    os.mkfifo(tmp_path / "rank_1.log")  # no trace is a pipe
    (tmp_path / "rank_2.log").symlink_to("/dev/zero")
    assert run_limited(tmp_path, cpu_s=60, megabytes=200)[0] == [f"{i}/0" for i in range(len(names))]


def test_a_hash_that_lies_is_not_believed(tmp_path):
    """Texts are parsed once by their hash: two ranks that give one hash to two texts keep their own."""
    other = GRAPH.replace(".sin()", ".cos()")
    assert len(other) == len(GRAPH)
    for rank, text in enumerate((GRAPH, other)):
        entries = whole()
        entries[3] = entry("dynamo_output_graph", {}, text, rank=rank).replace(
            f"{hash(text) & 0xFFFFFFFF:032x}", "0" * 32
        )
        tmp_path.joinpath(f"rank_{rank}.log").write_text("".join(entries))
    ops = [mark.name for mark in read(tmp_path).marks if mark.stage == "dynamo"]
    assert ops == [".sin", ".cos"]


def test_runs_of_a_profile_belong_to_the_code_since_the_last_reset(tmp_path):
    """Dynamo uses an id again then; and only an event with a length is a run."""
    name = "Torch-Compiled Region: 0/0"
    events = [{"ph": ph, "name": name, "args": {"name": name}} for ph in "XXi"]
    profile = tmp_path / "step_0.json"
    profile.write_text(json.dumps({"traceEvents": [*events, None, 5, {"ph": "X", "name": 7}]}))
    tables(tmp_path, "".join(whole() + whole()))
    found = read(tmp_path, [profile])
    assert [(row.id, row.runs) for row in found.compiles] == [("0/0", 0), ("0/0 (2)", 2)]
    assert found.counts[0].breaks == 2
