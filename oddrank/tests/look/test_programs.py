"""Programs as their owners would run them, some after public reports of bugs: what look has to say of each."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import left

SCRIPTS = Path(__file__).parent / "scripts"
DONE, FAILED = 0, 3


@dataclass(frozen=True)
class Case:
    """What the terminal and the page have to say.

    Args:
        run: The program and its arguments.
        said: Patterns, on the terminal and on the page.
        status: The exit status.
        page: Patterns, on the page.
        unsaid: Texts, not on the terminal.
        words: Further options of the command.
    """

    run: str
    said: list[str]
    status: int = DONE
    page: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)
    words: str = ""


def at(script: str, text: str) -> str:
    """The pattern of the place of the one line of a program that holds a text."""
    lines = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8").splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if text in line)
    return rf"{script.rpartition('/')[2]}\.py:{number}\b"


ADVICE_ON_TORCHS_OWN = ["Avoid calling", "_inside_ddp_forward", "set_runtime_stats_and_log"]
SAME, SAME_SAID = "\nranks did not differ", "[Rr]anks did not differ"

# two DDP modules in one process group: whose gradients a collective carries, and backwards in another order
JUDGE, MAKE = (at("adversaries", f"# THE {whose}'S BACKWARD") for whose in ("DISCRIMINATOR", "GENERATOR"))
EITHER = r"all_reduce \[1072\] float32 of the gradients of Discriminator or Generator"
TAKEN = "is taken for replicated over dimension tp of the mesh, and differs between ranks"
SHORT = "--timeout 120 --stall 5"

CASES = [
    Case(
        "adversaries healthy",  # the generator's step calls the discriminator that DDP holds, which nobody compiled
        [SAME_SAID, r"update_generator\): Discriminator ran in eager 7 times"],
        page=["8 parameters under DDP are equal"], unsaid=["ranks differ", "2. "], words="--step step",
    ),
    Case(
        "adversaries alike",
        [rf"{EITHER} on rank 0 at {JUDGE} \(update_discriminator\); {EITHER} on rank 1 at {MAKE} \(update_generator\)",
         "gradients of one may have been averaged with those of the other"],
        unsaid=[SAME], words="--step step",
    ),
    Case(
        "adversaries mixed",
        [rf"rank 0  all_reduce\(sum\) \(1072,\) float32 of the gradients of Discriminator at {JUDGE}",
         rf"rank 1  all_reduce\(sum\) \(1600,\) float32 of the gradients of Generator at {MAKE}"],
        FAILED, unsaid=[SAME], words="--step step --verify",
    ),
    Case(
        "adversaries hangs",
        [rf"all_reduce \(1600,\) float32 of the gradients of Generator at {MAKE}", "rank 0  never called it"],
        FAILED, unsaid=["of the gradients of Discriminator or"], words="--step step --stall 15",
    ),
    Case(
        "decoder fsdp --print",
        [r"decoder\.py:26 \(Chatty\.forward\)", f"{SAME_SAID} in what was compared"], unsaid=["ranks differ"],
    ),
    # rank 0 has an error on its way, or none, while oddrank works
    Case(
        "dying in-look 3",
        ["rank 1 died: killed by SIGABRT", r"rank 0 raised ArithmeticError: the loss is nan",
         at("dying", "raise ArithmeticError")],
        FAILED, unsaid=["oddrank/"],
    ),
    Case(
        "dying in-look 99",
        ["rank 1 died: killed by SIGABRT", "rank 0 was here:", at("dying", "optimizer.step()")],
        FAILED, unsaid=["oddrank/", "raised"],
    ),
    Case(
        "gradients whole aot_eager",
        [SAME_SAID],
        # AOTAutograd traces both halves: nobody sees this gradient
        page=["Nothing was found in the program's own code",
              r"\d gradients that to_local and full_tensor take for replicated",
              rf"to_local\(\) at {at('gradients', '# THE RESULT')} .*cannot tell whether ranks hold the same"],
        unsaid=["\n1. "], words="--step step",
    ),
    Case(
        "gradients lost eager",
        [rf"{at('gradients', '# EVERY TOKEN')}: ranks differ: the gradient that comes back to full_tensor\(\) {TAKEN}",
         rf"{at('gradients', '# THE ROWS')}: ranks differ: the gradient that comes back to to_local\(\) {TAKEN}",
         r"the gradient of tp\.norm\.weight is \[Partial\(sum\)\], where the parameter is \[Replicate\(\)\]"],
        page=[r"the gradient of table\.0\.weight is replicated over dimension tp of the mesh",
              r"\(2-norm 0\.0625 on rank 0, 0\.125 on rank 1\)", r"the parameter is \[Shard\(dim=0\)\]",
              f"{at('gradients', '# THE LOSS')}: dist.all_reduce passes gradients between ranks when compiled",
              r"the gradients of copy\.weight, written\.weight differ, too"],
        unsaid=[SAME], words="--step step",
    ),
    Case(  # it fails before its first step: the page has what was compiled; the error stands once
        "no_kernel",
        [*(rf"rank {rank} failed while compiling Block\.forward again: .*dimension 0 of `x` changes \(8 -> {rows}\)"
           for rank, rows in ((0, 16), (1, 17))),
         "NoKernel: no kernel for 16 rows", "on rank 1: NoKernel: no kernel for 17 rows"],
        FAILED,
        ["then a graph break", "failed: BackendCompilerFailed", r"torch\._dynamo\.graph_break\(\)", "TENSOR_MATCH"],
    ),
    Case(
        "reported/early_stop",
        [at("reported/early_stop", "loss.backward()"), "rank 0 finished its part", "Called from different lines since",
         r"rank 0  barrier at early_stop\.py:(\d+) \(main\)\n +rank 1  barrier at early_stop\.py:(?!\1\b)"],
        FAILED, unsaid=[SAME, ": helper was ", "__init__ was ", *ADVICE_ON_TORCHS_OWN],
    ),
    Case(
        "reported/layer_names",
        # torch does not name the function of the compile that it refuses
        [r"failed while compiling Block\.forward again: `self\.name` changes each time \('layers\.\d+' -> ",
         "FailOnRecompileLimitHit", at("reported/layer_names", "x = block(x, self.scales)")],
        FAILED, unsaid=[SAME, "it was 'layers.7'"],
    ),
    Case(
        "reported/library_model",
        [r"compile the blocks.*given up for it: .*modeling_qwen2\.py:\d+ \(Qwen2Model\.forward\)",
         at("reported/library_model", "loss = model(")],
        page=["torch/distributed/fsdp/"], unsaid=["Avoid calling the function"],
    ),
    Case(
        "reported/metrics",
        [at("reported/metrics", "distance.item()")
         + r".*graph break: .*; .*resumed at metrics\.py:\d+ was compiled \d+ times",
         "the value from the break changes", "take its value outside"],
        unsaid=["___stack", "2. ", *ADVICE_ON_TORCHS_OWN],
    ),
    Case(
        "reported/metrics_by_label",
        # gloo ends a process that gets data of another size, or its call raises
        [at("reported/metrics_by_label", "dist.all_reduce(value)"), at("reported/metrics_by_label", "loss.backward()"),
         "different collectives, or in one with other sizes.*--verify|data of another size.\nFirst difference"],
        FAILED, unsaid=[SAME, *ADVICE_ON_TORCHS_OWN],
    ),
    Case(
        "reported/never_called",
        [at("reported/never_called", "torch.compile(self.wrapped")
         + r".*DistributedDataParallel\.forward is never called"],
    ),
    Case(
        "reported/norm_on_rank_0",
        # a rank that is killed takes what it knew of its collectives along: no first difference
        ["rank 0 died", at("reported/norm_on_rank_0", "p.full_tensor()"),
         at("reported/norm_on_rank_0", "loss = (model(x) - x)")],
        FAILED, unsaid=[SAME],
    ),
    Case(
        "reported/processor_per_block",
        [r"Block\.forward was compiled 8 times, then given up: the recompile limit; 4 of 12 calls a step run in Python",
         # the line before the call, or the call's on torch 2.15
         f"{at('reported/processor_per_block', 'scale = 1.0')}|"
         f"{at('reported/processor_per_block', 'self.attn(x) * scale')}"],
        unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case(
        "reported/ring_attention",
        ["rank 0 was waiting in recv from rank 1 here:", at("reported/ring_attention", "take.wait()"),
         "rank 0 receives from rank 1, rank 1 receives from rank 0; none of them sends"],
        FAILED, unsaid=[SAME],
    ),
    Case(
        "reported/scheduled_optimizer",
        [r"Adam\.step was compiled 8 times, then given up: the recompile limit",
         at("reported/scheduled_optimizer", "        opt.step()"),
         r"`self\.param_groups\[0\]\['betas'\]\[0\]` changes"],
        unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case(
        "reported/sequential_under_ddp",
        [at("reported/sequential_under_ddp", "torch.compile(DDP") + r".*nothing was compiled", "torch's own code",
         r"DDP\(torch\.compile\(module\)\)"],
        page=["no effect"], unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case("reported/two_stages", ["as the stages of a pipeline do"], unsaid=["anks differ", SAME]),
    Case("reported/whole_step", [at("reported/whole_step", "m(x).sum().backward()")], unsaid=ADVICE_ON_TORCHS_OWN),
    # ends of a rank after the recorded steps, which are worth a page; nothing of the script is left
    Case("trouble exit", ["rank 1 raised SystemExit: 7", r"trouble\.py:\d+ \(trouble\)"], FAILED, words=SHORT),
    Case("trouble die", ["rank 1 died: exit code 5"], FAILED, words=SHORT),
    Case(
        "trouble hang", ["no end within", r"trouble\.py:\d+ \(trouble\)"], FAILED, words="--timeout 25 --stall 90"
    ),
    Case(
        "trouble leave",
        ["rank 1 had ended the script by then, and the others called a further collective",
         r"at collective 9:\s+rank 0  all_reduce"],
        FAILED, words=SHORT,
    ),
    Case("trouble calm", ["3 forwards"], unsaid=["failed"], words=SHORT),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.run)
def test_program(case: Case, tmp_path: Path) -> None:
    script, *arguments = case.run.split()
    mark = f"ODDRANK_TEST_PROGRAM={tmp_path}"
    ran = subprocess.run(
        [sys.executable, "-m", "oddrank", "look", "--out", "page", *case.words.split(),
         str(SCRIPTS / f"{script}.py"), *arguments],
        capture_output=True, text=True, cwd=tmp_path, timeout=600, env=os.environ | dict([mark.split("=", 1)]),
    )  # fmt: skip
    text = ran.stdout + ran.stderr
    assert ran.returncode == case.status, text
    assert "Traceback (most recent call last)" not in re.sub(r"\[rank \d\].*", "", text)
    for said in case.said:
        assert re.search(said, text), f"{said!r} is not in\n{text}"
    for said in case.unsaid:
        assert said not in text, f"{said!r} is in\n{text}"
    assert all(int(share) <= 100 for share in re.findall(r"\((\d+)%\)", text)), "no share is above the whole"
    body = (tmp_path / "page" / "index.html").read_text(encoding="utf-8").partition("</style>")[2]
    plain = html.unescape(re.sub("<[^>]+>", "", body.replace("</td>", " ")))
    for said in [*case.said, *case.page]:
        assert re.search(said, plain), f"{said!r} is not on the page"
    assert left(mark) == []


def test_every_program_has_a_case() -> None:
    reported = {f"reported/{path.stem}" for path in (SCRIPTS / "reported").glob("*.py")}
    assert reported == {case.run for case in CASES if case.run.startswith("reported/")}
