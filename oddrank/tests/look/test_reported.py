"""Programs after public reports of bugs: what `oddrank look` has to say of each, as its owner would run it."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REPORTED = Path(__file__).parent / "scripts" / "reported"
DONE, NO_STEP, FAILED = 0, 2, 3


@dataclass(frozen=True)
class Case:
    """What the terminal and the page have to say, as patterns, and what neither may say before the verdict on ranks.

    Args:
        script: the program.
        status: the exit status.
        said: on the terminal, and on the page.
        page: on the page.
        unsaid: texts, on the terminal.
        in_ci: whether it stands for its kind in CI.
    """

    script: str
    status: int
    said: list[str]
    page: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)
    in_ci: bool = False

    def param(self):
        """The case for pytest, with its marks."""
        marks = [pytest.mark.slow] if self.in_ci else [pytest.mark.slow, pytest.mark.full]
        return pytest.param(self, id=self.script, marks=marks)


def at(script: str, text: str) -> str:
    """The pattern of the place of the one line of a program that holds a text."""
    lines = (REPORTED / f"{script}.py").read_text(encoding="utf-8").splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if text in line)
    return rf"{script}\.py:{number}\b"


ADVICE_ON_TORCHS_OWN = ["Avoid calling", "_inside_ddp_forward", "set_runtime_stats_and_log"]
SAME = "all ranks did the same"
CASES = [
    Case(
        "adversarial", DONE,
        # the size changes with the text that selects the network; DDP's forward is compiled again for the same reason
        [at("adversarial", "def forward(self, x, mode)") + r".*GAN\.forward was compiled 3 times",
         "`mode` changes", "fix: expected once for each value",
         "compiled again with the program's functions: DistributedDataParallel.forward"],
        unsaid=["mark_dynamic", "2. ", *ADVICE_ON_TORCHS_OWN],
    ),
    Case(
        "async_exchange", DONE,
        [at("async_exchange", "async_op=True") + r".*graph break", r"fix: .*functional collectives",
         "[Aa]ll ranks did the same"],
        unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case(
        "best_checkpoint", FAILED,
        ["rank 0 died", at("best_checkpoint", "state = get_model_state_dict("), "rank 1 raised RuntimeError",
         at("best_checkpoint", "loss = (model(x) - x)"), "nothing was compiled"],
        unsaid=[SAME],
    ),
    Case(
        "compiled_update", DONE,
        [r"Adam\.step was compiled 8 times, then given up: the recompile limit",
         at("compiled_update", "    opt.step()"),
         r"`self\.param_groups\[0\]\['betas'\]\[0\]` changes"],
        unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case(
        "early_stop", FAILED,
        [at("early_stop", "loss.backward()"), "rank 0 finished its part", "Called from different lines since",
         r"rank 0  barrier at early_stop\.py:(\d+) \(main\)\n +rank 1  barrier at early_stop\.py:(?!\1\b)"],
        unsaid=[SAME, ": helper was compiled", "__init__ was compiled", *ADVICE_ON_TORCHS_OWN],
    ),
    Case(
        "experts", DONE,
        [at("experts", "full_tensor()") + ".*gradient that comes back to full_tensor.* differs between ranks",
         "grad_placements with Partial"],
        unsaid=[SAME, *ADVICE_ON_TORCHS_OWN], in_ci=True,
    ),
    Case(
        "exchange_by_router", DONE,
        [at("exchange_by_router", "counts.tolist()") + r".*graph break", "take its value outside",
         r"[Aa]ll ranks did the same.*sizes only: .*Experts\.forward"],
        unsaid=["same branches", "___stack"],
    ),
    Case(
        "float_attribute", FAILED,
        # the guard that fails first is another one: torch's message and the guards of the first compile name the rate
        [r"failed while compiling Layer\.forward again", "l_self_modules_path_rate", "BackendCompilerFailed",
         at("float_attribute", "loss = model(")],
        [r"'path'\]\.rate == 0",
         at("float_attribute", "self.norms.append(") + "|" + at("float_attribute", "x = layer(x)")],
        unsaid=[SAME],
    ),
    Case(
        "gathered_features", DONE,
        [at("gathered_features", "dist.all_gather(parts") + ".*passes gradients between ranks when compiled"],
        unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case(
        "late_adapters", DONE,
        [r"ranks differ: .*(parameters|replica)", r"\.a\b", r"\.b\b", r"fully_shard"],
        unsaid=[SAME], in_ci=True,
    ),
    Case(
        "layer_names", FAILED,
        # torch does not name the function of the compile that it refuses
        [r"failed while compiling Block\.forward again: `self\.name` changes each time \('layers\.\d+' -> ",
         "FailOnRecompileLimitHit", at("layer_names", "x = block(x, self.scales)")],
        unsaid=[SAME, "it was 'layers.7'"], in_ci=True,
    ),
    Case(
        "library_model", DONE,
        [r"compile the blocks.*given up for it: .*modeling_qwen2\.py:\d+ \(Qwen2Model\.forward\)",
         at("library_model", "loss = model(")],
        unsaid=["Avoid calling the function"],
    ),
    Case(
        "long_document", FAILED,
        [r"rank 1 was compiling .*Decoder\.forward again", r"32 -> 48", at("long_document", "loss.backward()"),
         "the compile did not end"],
        unsaid=[SAME],
    ),
    Case(
        "metrics", DONE,
        [at("metrics", "distance.item()") + r".*graph break: .*; .*resumed at metrics\.py:\d+ was compiled \d+ times",
         "the value from the break changes", "take its value outside"],
        unsaid=["___stack", "2. ", *ADVICE_ON_TORCHS_OWN], in_ci=True,
    ),
    Case(
        "metrics_by_label", FAILED,
        # gloo ends a process that gets data of another size, or its call raises
        [at("metrics_by_label", "dist.all_reduce(value)"), at("metrics_by_label", "loss.backward()"),
         "ranks were probably in different collectives.*--verify"],
        unsaid=[SAME, *ADVICE_ON_TORCHS_OWN],
    ),
    Case(
        "never_called", NO_STEP,
        [r"DistributedDataParallel\.forward.*" + at("never_called", "torch.compile(self.wrapped") + ".*never called"],
        in_ci=True,
    ),
    Case(
        "noisy_router", FAILED,
        # the stack of a backward has no line of its forward; that nothing was compiled refutes torch's tip
        ["CheckpointError", "Recomputed values", at("noisy_router", "loss.backward()"),
         "nothing was compiled|until thenNone"],
        unsaid=[SAME],
    ),
    Case(
        "norm_on_rank_0", FAILED,
        # a rank that is killed takes what it knew of its collectives along: no first difference
        ["rank 0 died", at("norm_on_rank_0", "p.full_tensor()"), at("norm_on_rank_0", "loss = (model(x) - x)")],
        unsaid=[SAME], in_ci=True,
    ),
    Case(
        "pipeline", FAILED,
        [at("pipeline", "schedule.step(batch[:, :-1])"), "ValueError|RuntimeError"],
        unsaid=[SAME], in_ci=True,
    ),
    Case(
        "processor_per_block", DONE,
        [r"Block\.forward was compiled 8 times, then given up: the recompile limit; 4 of 12 calls a step run in Python",
         # the line before the call, or the call's on torch 2.15
         f"{at('processor_per_block', 'scale = 1.0')}|{at('processor_per_block', 'self.attn(x) * scale')}"],
        unsaid=ADVICE_ON_TORCHS_OWN, in_ci=True,
    ),
    Case(
        "ring_attention", FAILED,
        ["rank 0 was waiting in recv from rank 1 here:", at("ring_attention", "take.wait()"),
         "rank 0 receives from rank 1, rank 1 receives from rank 0; none of them sends"],
        unsaid=[SAME], in_ci=True,
    ),
    Case(
        "rollout", FAILED,
        # rank 0 has left the rollout, and its forward has taken the gathers of rank 1's next tokens
        [r"rollout\.py(: |The script )failed before the steps to record were over",
         at("rollout", "logits = model(tokens[:, -8:])"), at("rollout", "loss.backward()"),
         "First difference", "Called from different lines"],
        unsaid=[SAME],
    ),
    Case(
        "scheduled_optimizer", DONE,
        [r"Adam\.step was compiled 8 times, then given up: the recompile limit",
         at("scheduled_optimizer", "        opt.step()"), r"`self\.param_groups\[0\]\['betas'\]\[0\]` changes"],
        unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case(
        "sequential_blocks", DONE,
        [at("sequential_blocks", "block.compile(") + r".*nothing was compiled", "torch's own code"],
        ["no effect"],
        unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case(
        "sequential_under_ddp", DONE,
        [at("sequential_under_ddp", "torch.compile(DDP") + r".*nothing was compiled", "torch's own code",
         r"DDP\(torch\.compile\(module\)\)"],
        ["no effect"],
        unsaid=ADVICE_ON_TORCHS_OWN, in_ci=True,
    ),
    Case(
        "short_batch", DONE,
        # torch names no line of a guard on a size: it is the function's
        [r"dimension 0 of `x` changes \(2 -> 1\)", at("short_batch", "def forward(self, x)") + r".*Block\.forward",
         "pad it, or drop that batch"],
        unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case(
        "skipped_step", FAILED,
        [at("skipped_step", "dist.all_reduce(count)"), "rank 1 finished its part", "rank 1  never called it",
         "the one that was left out may be any earlier one"],
        unsaid=[SAME],
    ),
    Case(
        "small_batch", FAILED,
        [at("small_batch", "dist.all_gather(parts, z)")], unsaid=[SAME],
    ),
    Case(
        "two_heads", DONE,
        ["6 of 6 parameters under DDP differ", "once for each object",
         r"Linear\.forward at " + at("two_heads", "torch.compile(model.module.label")
         + r", Linear\.forward at " + at("two_heads", "torch.compile(model.module.domain") + " were compiled 2 times"],
        [r"Adapter\.features at " + at("two_heads", "torch.compile(model.module.features")],
        unsaid=["mark_dynamic", "Adapter.forward"],
    ),
    Case(
        "two_stages", DONE, ["as the stages of a pipeline do"], unsaid=["anks differ", SAME], in_ci=True,
    ),
    Case(
        "uneven_batches", FAILED,
        # the gradients of rank 0's next step meet the all-reduce after rank 1's last one
        [at("uneven_batches", "dist.all_reduce(total)"), at("uneven_batches", "loss.backward()")],
        unsaid=[SAME],
    ),
    Case(
        "validation", DONE,
        # torch does not say which call failed the guard
        [at("validation", "torch.compile(DDP") + r".*nothing was compiled", "expected once",
         "gradients are on in one call and off in another"],
        [at("validation", "right += (model(")],
        unsaid=ADVICE_ON_TORCHS_OWN,
    ),
    Case(
        "whole_step", DONE,
        [at("whole_step", "m(x).sum().backward()"), r"backward"], unsaid=ADVICE_ON_TORCHS_OWN,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", [case.param() for case in CASES])
def test_report(case: Case, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "oddrank", "look", "--out", "page", str(REPORTED / f"{case.script}.py")],
        capture_output=True, text=True, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    text = ran.stdout + ran.stderr
    assert ran.returncode == case.status, text
    assert "Traceback (most recent call last)" not in re.sub(r"\[rank \d\].*", "", text)
    for said in case.said:
        assert re.search(said, text), f"{said!r} is not in\n{text}"
    for said in case.unsaid:
        assert said not in text, f"{said!r} is in\n{text}"
    page = tmp_path / "page" / "index.html"
    assert page.exists() == (case.status != NO_STEP)
    body = page.read_text(encoding="utf-8").partition("</style>")[2] if page.exists() else ""
    plain = html.unescape(re.sub("<[^>]+>", "", body.replace("</td>", " ")))
    for said in [*case.said, *case.page] if body else []:
        assert re.search(said, plain), f"{said!r} is not on the page"


def test_every_program_has_a_case():
    assert sorted(case.script for case in CASES) == sorted(path.stem for path in REPORTED.glob("*.py"))
