"""How long `read` takes for the traces of many ranks, as a multiple of what plain reading and JSON-decoding takes.

    python benchmarks/reading.py TRACE.log [--ranks 64] [--megabytes 20] [--rounds 3] [--other FOLDER]

TRACE.log is a real trace: `TORCH_TRACE=traces python train.py` writes one. Its entries are repeated, with new numbers
of frames, until the file has so many megabytes; each rank gets a copy, as ranks that compile the same code write the
same text. The floor reads all the files, and decodes the JSON of each entry and each distinct text once. A round
measures the floor, `read`, and, where a FOLDER has another engine, its `tables.read`, one after the other. Each
measurement has a process of its own, so that its peak memory is its own; seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_FRAME = re.compile(rb'"frame_id": (\d+)')


def repeat(trace: bytes, size: int) -> bytes:
    """A trace of about so many bytes: each repetition has frames of its own."""
    entries = re.split(rb"\n(?=V)", trace)
    names = [entry for entry in entries if b'{"str"' in entry[:200]]
    rest = [entry for entry in entries if b'{"str"' not in entry[:200]]
    frames = 1 + max((int(found[1]) for entry in rest for found in _FRAME.finditer(entry)), default=0)
    made, total, frame = list(names), sum(map(len, names)), 0
    while total < size:
        for entry in rest:
            head, newline, text = entry.partition(b"\n")
            first = _FRAME.search(head)
            if first:
                head = _FRAME.sub(b'"frame_id": %d' % (int(first[1]) + frame), head)
            made.append(head + newline + text)
            total += len(made[-1]) + 1
        frame += frames
    return b"\n".join(made) + b"\n"


def floor(folder: Path) -> int:
    """Read the files; decode the JSON of every entry, and every distinct text. Returns how many texts there were."""
    seen: set[str] = set()
    characters = 0
    for path in sorted(folder.glob("*.log")):
        for entry in re.split(rb"\n(?=V)", path.read_bytes()):
            head, _, text = entry.partition(b"\n")
            said = json.loads(head[head.index(b"] ") + 2 :])
            name = said.get("has_payload")
            if name and name not in seen:
                seen.add(name)
                characters += len(text.decode())
    return len(seen)


def engine(folder: Path) -> int:
    """`oddrank.record.read`; returns the number of marks."""
    from oddrank.record import read

    return len(read(folder).marks)


def another(folder: Path, other: str) -> int:
    """`read` of a module `tables` in a folder; returns the number of marks."""
    sys.path.insert(0, other)
    import tables  # type: ignore[import-not-found]

    return len(tables.read(str(folder)).marks)


def measured(what: str, folder: Path, other: str) -> None:
    """Run one of the three in this process, and print what it took as JSON."""
    began = time.process_time()
    found = {"floor": floor, "read": engine}[what](folder) if what != "other" else another(folder, other)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "peak_mb": peak, "found": found}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", default="", metavar="FOLDER")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        return measured(asked.measure[0], Path(asked.measure[1]), asked.other)
    whats = ["floor", "read", *(["other"] if asked.other else [])]
    took: dict[str, list[dict[str, float]]] = {what: [] for what in whats}
    with tempfile.TemporaryDirectory() as folder:
        content = repeat(asked.trace.read_bytes(), int(asked.megabytes * 1e6))
        for rank in range(asked.ranks):
            Path(folder, f"dedicated_log_torch_trace_rank_{rank}_x.log").write_bytes(content)
        total = len(content) * asked.ranks / 1e6
        print(f"{asked.ranks} traces of {len(content) / 1e6:.1f} MB")
        for _ in range(asked.rounds):
            for what in whats:
                command = [sys.executable, __file__, str(asked.trace), "--measure", what, folder]
                done = subprocess.run(
                    [*command, "--other", asked.other], capture_output=True, text=True, check=True
                )
                took[what].append(json.loads(done.stdout))
    for what in whats:
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(took[what], took["floor"], strict=True)]
        seconds = statistics.median(one["seconds"] for one in took[what])
        print(
            f"{what:6} {seconds:7.2f} s  {total / seconds:6.0f} MB/s  "
            f"{statistics.median(ratios):5.2f} x the floor ({min(ratios):.2f} to {max(ratios):.2f})  "
            f"peak {max(one['peak_mb'] for one in took[what]):5.0f} MB  found {took[what][0]['found']:.0f}"
        )


if __name__ == "__main__":
    main()
