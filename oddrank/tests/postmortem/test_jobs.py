"""Jobs that went wrong in a known way, under plain torchrun, with what torch leaves: right rank, call and cause."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flight_records import text_of, verdict_on
from oddrank.command import main
from oddrank.postmortem.folder import gather
from oddrank.postmortem.judgement import judge
from oddrank.postmortem.owners import rank_of

DRILL = Path(__file__).with_name("drill.py")
ENV = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_LOGS": "recompiles,graph_breaks,dynamo",
    "PYTHONFAULTHANDLER": "1",
    "OMP_NUM_THREADS": "1",
}
# drill: the verdict, its ranks, the collective and what differs there, and what the sentences have to say
TRUTH = {
    "healthy": ("nothing wrong", [], None, []),
    "other": ("difference", [1], (3, "operation"), ["rank 1 called broadcast", "ranks 0, 2 all_reduce", "in other"]),
    "old_records": ("difference", [], None, ["rank 1 aborted, because a peer sent", "in sizes"]),
    "recompiling": (
        "difference", [1], (4, "missing"),
        [r"rank 1 was compiling \[0/1\]", "guard failed: .*size mismatch at index 0. expected 8, actual 5",
         "ranks 0, 2 did not compile"],
    ),
    "killed": (
        "dead", [1], None, [r"exit code -9 \(SIGKILL\)", "rank 0 lost its connection in the call at .* in killed"],
    ),
    "raising": (
        "dead", [1], None, [r"KeyError: 'layers', at drill.py:\d+ in raising", "rank 2 lost its connection"],
    ),
    # the members call in their group, or one of them, or both, still make it when they are ended: a race in the store
    "half_made": (
        ("difference", "waiting"), [0], None,
        [r"rank 0 waits in the making of group 1 at drill.py:\d+ in half_made|rank 0 at drill.py:\d+ in half_made",
         r"(ranks 1, 2|rank 1|rank 2) made group 1 \(mesh\) and called all_reduce.*: rank 0 makes another group"
         r"|ranks 1, 2 at drill.py:\d+ in mesh"],
    ),
    "ring": (
        "circle", [0, 1, 2, 3], (2, "missing"),
        [f"rank {rank} in collective 2 of mesh_{group}, for rank {peer}"
         for rank, group, peer in ((0, "tensor", 1), (1, "data", 3), (3, "tensor", 2), (2, "data", 0))],
    ),
    "stale": (
        "difference", [1], (5, "operation"),
        ["rank 1 called all_reduce", "by a compiled graph",
         r"for compile \[0/0\], rank 1 took its code from a cache, rank 0 did not find it"],
    ),
    "wedged": (
        "waiting", [0], None,
        ["ranks 1, 2 wait for the key .*plan of the store", "rank 0 was in the program: .* in wedged"],
    ),
}  # fmt: skip
CI = ("healthy", "recompiling", "killed")
SETS = [
    pytest.param(name, marks=[pytest.mark.slow] if name in CI else [pytest.mark.slow, pytest.mark.full])
    for name in TRUTH
]


@pytest.fixture(scope="session")
def left(tmp_path_factory):
    """The folder that a drill left; each runs once."""
    ran: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in ran:
            folder = tmp_path_factory.mktemp(name)
            shutil.copy(DRILL, folder)
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--redirects", "3"]
            command += ["--monitor-interval", "3"]  # others may write their record before they are ended
            command += [
                "--nproc-per-node",
                "4" if name == "ring" else "3",
                "--log-dir",
                "logs",
                "drill.py",
                name,
            ]
            env = os.environ | ENV | {"TORCH_TRACE": str(folder / "traces")}
            with (folder / "launcher.log").open("wb") as log:
                subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=log, timeout=300)
            ran[name] = folder
        return ran[name]

    return run


def line_of(evidence: str, folder: Path) -> str:
    """The line that `file:number` names."""
    file, _, number = evidence.rpartition(":")
    return (folder / file).read_text(errors="replace").splitlines()[int(number) - 1]


@pytest.mark.parametrize("name", SETS)
def test_the_rank_the_collective_and_the_cause(name, left):
    folder = left(name)
    kind, ranks, at, words = TRUTH[name]
    found = verdict_on(folder)[0]
    assert found.kind in (kind if isinstance(kind, tuple) else (kind,)), text_of(found)
    assert found.ranks == ranks, text_of(found)
    if at:
        assert (found.difference.seq, found.difference.what) == at
    for pattern in words:
        assert re.search(pattern, text_of(found)), f"{pattern} is not in\n{text_of(found)}"
    for said in [found.head, *found.chain, *(state.sentence for state in found.states.values())]:
        for evidence in said.evidence:
            place = evidence.partition("#")[0]
            assert (folder / place).exists() or line_of(evidence, folder).strip(), f"{said}: no such evidence"
    # each line of the program that a sentence names is one of the drill
    source = DRILL.read_text().splitlines()
    for number, where in re.findall(r"drill\.py:(\d+) in (\w+)", text_of(found)):
        where = re.sub(r"^torch_dynamo_resume_in_(\w+)_at_\d+$", r"\1", where)
        assert any(f"def {where}" in line for line in source[: int(number) + 1]), (number, where)


@pytest.mark.slow
def test_the_command_writes_a_page_and_says_the_same(left, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["postmortem", str(left("recompiling")), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    page = (tmp_path / "out" / "index.html").read_text()
    for text in ("rank 1 was compiling [0/1]", "expected 8, actual 5"):
        assert text in said
    assert re.search(r"def step\(x\):\n +… \[rank 1\] was being compiled when the trace ends\n", said), said
    assert "expected 8, actual 5" in page and "tlparse/index.html" in page and "<script" not in page
    assert "it fails on gloo" in page  # torchfrtrace
    assert (tmp_path / "out" / "tlparse" / "index.html").is_file()
    kept = {path.name for path in left("recompiling").iterdir()}
    own = {f"{kind}{rank}{end}" for kind, end in (("trace_", ""), ("stacks_", ".txt")) for rank in range(3)}
    assert kept - own == {"drill.py", "launcher.log", "logs", "traces"}


@pytest.mark.slow
def test_without_one_rank_s_files_what_is_left_is_told(left, tmp_path):
    """Of the rank that recompiles nothing is left; then of the records nothing; then all is cut in half."""
    folder = tmp_path / "job"
    shutil.copytree(left("recompiling"), folder)
    for path in folder.rglob("*"):
        if path.is_file() and rank_of(str(path.relative_to(folder))) == 1:
            path.unlink()
    found = verdict_on(folder)[0]
    assert found.kind == "waiting" and found.ranks == [1] and "nothing here says" in text_of(found)
    assert any("no flight record of rank 1" in text for text in found.unknown)

    shutil.rmtree(folder)
    shutil.copytree(left("recompiling"), folder)
    for path in folder.glob("trace_*"):
        path.unlink()
    found = verdict_on(folder)[0]
    assert found.kind == "waiting" and found.ranks == [1]
    assert "was compiling [0/1]" in text_of(found) and "expected 8, actual 5" in text_of(found)
    assert found.unknown[0].startswith("no flight record: set TORCH_FR_BUFFER_SIZE")

    shutil.rmtree(folder)
    shutil.copytree(left("recompiling"), folder)
    for path in folder.glob("trace_*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    held = gather([folder])
    notes = [read.note for read in held.files if Path(read.name).name.startswith("trace_")]
    assert len(notes) == 3 and all("cut off" in note for note in notes)
    assert judge(held).ranks == [1]


@pytest.mark.slow
def test_all_ranks_mixed_in_one_log(left, tmp_path):
    """Lines of all ranks in turn, as a launcher without folders prints them, with torchrun's prefixes and srun's."""
    logs = sorted(left("recompiling").glob("logs/*/*/*/stderr.log"))
    assert len(logs) == 3
    texts = [(int(path.parent.name), path.read_text().splitlines()) for path in logs]
    mixed = []
    for number in range(max(len(lines) for _, lines in texts)):
        mixed += [(rank, lines[number]) for rank, lines in texts if number < len(lines)]
    for form in ("{line}", "[default{rank}]:{line}", "{rank}: {line}"):
        job = tmp_path / str(len(form))
        job.mkdir()
        (job / "slurm.out").write_text("\n".join(form.format(rank=rank, line=line) for rank, line in mixed))
        found = verdict_on(job)[0]
        assert found.ranks == [1], form
        assert "was compiling [0/1]" in text_of(found) and "expected 8, actual 5" in text_of(found)
