"""The code that Inductor writes, read as a stream program that lesson 06's race check takes.

Read are launches of kernels (Triton, C++ and `extern_kernels`), `with stream1:`, the stream operators, and what happens
to buffers: where they are allocated, given another name (`buf6 = buf0; del buf0  # reuse`), and deleted. Another line
that names a buffer, such as a call of `torch.ops.aten`, is an error: a reader that is left out would hide a race.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from course.shared.streams.ops import DEFAULT, Kernel, StreamError
from course.shared.streams.program import Program
from labkit import torch_compat

__all__ = ["program_of", "shortened", "steps", "write"]

BLOCK = re.compile(r"with (?:torch\.cuda\.stream\()?(stream\d+|default_stream)\)?:")
NAMED = re.compile(r"(stream\d+|default_stream) = \w+_by_index\((\d+)\)")
SIGNATURE = re.compile(r"\ndef (triton_\w+)\(([^)]*)\)")
CPP = re.compile(r"(cpp_\w+) = async_compile\.cpp_pybinding\(\[([^\]]*)\]")
LAUNCH = re.compile(r"(triton_\w+)\.run\((.*)\)|(cpp_\w+)\((.*)\)|(?:(\w+) = )?extern_kernels\.(\w+)\((.*)\)")
OPERATOR = re.compile(r"torch\.ops\.streams\.(\w+?)(?:\.default)?\((.*)\)")
ALLOC = re.compile(r"(buf\d+) = empty_strided_\w+\((\([^)]*\)), ")
SAME = re.compile(r"(\w+) = (\w+); del \2|(\w+) = reinterpret_tensor\((\w+),")
HARMLESS = re.compile(
    r"assert_\w+\(|return |[\w, ]+ = args$|\w+ = (?:copy_(?:if_)?misaligned\(\w+\)|arg\w+)$"
)
LOGGED = re.compile(r"^.*\[__output_code\] ?", re.MULTILINE)  # what TORCH_LOGS puts before each line
BUFFER = re.compile(r"\b(?:buf\d+|arg\d+_\d+|primals_\d+|tangents_\d+)\b")


def write(
    functions: Sequence[Callable[..., Any]], shapes: Mapping[str, tuple[int, ...]], streams: int
) -> dict[str, str]:
    """What Inductor writes for an H100 of functions of (x, *streams), by their names; for a child process.

    shapes: of x by the function's name, by default (1024,). Takes the package triton. Nothing is run.
    """
    stream = torch_compat.pretend_streams()
    torch_compat.pretend_h100()
    found = {}
    with tempfile.TemporaryDirectory(prefix="labkit-cache-", ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for fn in functions:
            torch_compat.dynamo_reset()
            sides = [stream(i + 1) for i in range(streams)]
            with torch_compat.fake_tensors(), torch_compat.only_written() as written:
                try:
                    x = torch.empty(shapes.get(fn.__name__, (1024,)), device="cuda")
                    torch.compile(fn, fullgraph=True)(x, *sides)
                except Exception:  # it stops where the code would be compiled
                    if not written:
                        raise
            found[fn.__name__] = written[0]
    return found


def shortened(code: str) -> str:
    """The part of Inductor's code that `program_of` reads: the kernels' signatures and `call`, without comments."""
    heads = [f"def {name}({given}): ..." for name, given in SIGNATURE.findall(code)]
    lines = [line for line in _body(code) if line.strip() and not line.strip().startswith("#")]
    return "\n".join(["", *heads, *lines])


def steps(code: str) -> list[str]:
    """The lines of Inductor's code that have to do with streams and buffers, as they stand there."""
    lines = [line.rstrip() for line in _body(code)]
    wanted = (BLOCK, LAUNCH, OPERATOR, ALLOC, SAME)
    kept = [line for line in lines if any(one.match(line.strip()) for one in wanted) or _deleted(line)]
    short = [re.sub(r"\.default\(", "(", re.sub(r", stream=raw_stream\d*", "", line)) for line in kept]
    indent = min((len(line) - len(line.lstrip()) for line in short), default=0)
    return [line[indent:] for line in short]


def program_of(code: str, name: str = "Inductor's code") -> Program:
    """Inductor's code as a stream program: kernels on their streams with the buffers that they read and write.

    Args:
        code: a file that Inductor wrote, or the lines of one graph in the log of `TORCH_LOGS=output_code`.
        name: of the program.

    Raises:
        StreamError: it is no code of Inductor, launches nothing, or uses a buffer in a line that is not known here.

    >>> code = '''
    ... def call(args):
    ...     stream1 = get_external_object_by_index(1)
    ...     with stream1:
    ...         buf0 = empty_strided_cuda((4, ), (1, ), torch.float32)
    ...         extern_kernels.mm(arg0_1, arg0_1, out=buf0)
    ... '''
    >>> print(program_of(code))
    Inductor's code
      1  alloc('buf0', 'stream1', 4)
      2  kernel 'mm -> buf0' on 'stream1'
    """
    return _Reader(LOGGED.sub("", code), name).read()


def _body(code: str) -> list[str]:
    start = code.find("def call(")
    if start < 0:
        raise StreamError("this is no code of Inductor: it has no `def call(`")
    end = re.search(r"\nrunner = |\ndef (?:benchmark_compiled|get_args)", code[start:])
    return code[start : start + end.start() if end else None].splitlines()


def _deleted(line: str) -> str:
    found = re.match(r"del (\w+)$", line.strip())
    return found[1] if found else ""


class _Reader:
    """Reads line after line, and knows the stream that it is in and which memory each name of a buffer stands for."""

    def __init__(self, code: str, name: str) -> None:
        self.lines = [line.strip() for line in _body(code)]
        self.streams = _streams(self.lines)
        self.roles = {kernel: given.split(",") for kernel, given in SIGNATURE.findall(code)}
        self.types = {kernel: re.findall(r"'([^']*)'", given) for kernel, given in CPP.findall(code)}
        blocks = [found[1] for line in self.lines if (found := BLOCK.match(line))]
        sides = dict.fromkeys(one for one in (*self.streams.values(), *blocks) if one != "default_stream")
        self.made = Program(name, sides)
        self.now, self.owned = DEFAULT, set[str]()
        self.memory: dict[str, str] = {}  # name of a buffer -> name of the memory that it stands for

    def read(self) -> Program:
        for line in self.lines:
            if found := BLOCK.match(line):
                self.now = _plain(found[1])
            elif found := ALLOC.match(line):
                size = math.prod(map(int, re.findall(r"\d+", found[2])))
                self.made.alloc(found[1], max(size, 1), self.now)
                self.memory[found[1]] = found[1]
                self.owned.add(found[1])
            elif found := SAME.match(line):
                new, old = found[1] or found[3], found[2] or found[4]
                self.memory[new] = self.memory.get(old, old)
                if found[1]:
                    self.memory.pop(old, None)
            elif gone := _deleted(line):
                self._delete(gone)
            elif found := OPERATOR.match(line):
                self._operator(found[1], re.findall(r"\d+", found[2]))
            elif found := LAUNCH.match(line):
                self._launch(found)
            elif BUFFER.search(line.partition("#")[0]) and not HARMLESS.match(line):
                raise StreamError(
                    f"this line uses a buffer, and is none that this reader knows: {line[:120]}"
                )
        if not any(isinstance(op, Kernel) for op in self.made):
            raise StreamError("no kernel is launched in this code")
        return self.made

    def _stream(self, index: str) -> str:
        return _plain(self.streams.get(index, "default_stream"))

    def _delete(self, name: str) -> None:
        memory = self.memory.pop(name, name)
        if memory in self.owned and memory not in self.memory.values():
            self.made.free(memory)
            self.owned.discard(memory)

    def _operator(self, word: str, numbers: list[str]) -> None:
        if word == "record_event":
            self.made.record(f"e{numbers[0]}", self._stream(numbers[1]))
        elif word in ("wait_event", "sync_dealloc"):
            self.made.wait(f"e{numbers[0]}", self._stream(numbers[1]))
        elif word == "wait_stream":
            self.made.wait_stream(self._stream(numbers[1]), on=self._stream(numbers[0]))

    def _launch(self, found: re.Match[str]) -> None:
        triton, first, cpp, second, result, extern, third = found.groups()
        reads: list[str] = []
        writes: list[str] = []
        if extern:
            taken, _, out = third.partition("out=")
            reads, writes = BUFFER.findall(taken), BUFFER.findall(out)[:1] or ([result] if result else [])
        else:
            for i, name in enumerate(re.findall(r"[\w.]+", first or second)):
                if BUFFER.fullmatch(name):
                    read, write = self._uses(triton or cpp, i)
                    reads += [name] * read
                    writes += [name] * write
        of, into = ([self.memory.get(one, one) for one in some] for some in (reads, writes))
        short = extern or re.sub(r"^(?:triton_[a-z]+|cpp)_(?:fused_+)?", "", triton or cpp)
        self.made.kernel(f"{short} -> {', '.join(writes)}", 1, self.now, reads=tuple(of), writes=tuple(into))

    def _uses(self, kernel: str, index: int) -> tuple[bool, bool]:
        """Whether a kernel reads its argument of this number, and whether it writes it."""
        if kernel in self.types:
            return True, "const" not in self.types[kernel][index]
        return "in_" in self.roles[kernel][index], "out_ptr" in self.roles[kernel][index]


def _plain(stream: str) -> str:
    return DEFAULT if stream == "default_stream" else stream


def _streams(lines: list[str]) -> dict[str, str]:
    """Stream by index: where the code names them (CUDA), else by the block that an operator stands in (CPU)."""
    found = {index: stream for stream, index in NAMED.findall("\n".join(lines))}
    now = "default_stream"
    for line in lines:
        if entered := BLOCK.match(line):
            now = entered[1]
        elif called := OPERATOR.match(line):
            numbers = re.findall(r"\d+", called[2])
            found.setdefault(numbers[0] if "stream" in called[1] else numbers[1], now)
    return found
