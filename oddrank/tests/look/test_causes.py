"""What `oddrank look` says to do first: the cause, its line and its guard, in the terminal and on the page."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from oddrank.look import look, summary
from oddrank.record.guard_words import words

from oddrank import command as cli

SCRIPT = Path(__file__).parent / "scripts" / "causes.py"
LINES = SCRIPT.read_text().splitlines()


def line(text: str) -> str:
    """The place of a line of the script."""
    return f"causes.py:{next(i for i, look in enumerate(LINES, 1) if text in look)}"


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """The terminal's text, the part of the page up to the strip, and the baseline, of one run of each kind."""
    folder, kept = tmp_path_factory.mktemp("causes"), {}

    def run(kind: str) -> tuple[str, str, dict]:
        if kind not in kept:
            at, base = folder / kind, folder / f"{kind}.json"
            words = ["--out", str(at), "--save", str(base), str(SCRIPT), kind]
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                assert cli.main(["look", *words]) == 0
            body = (at / "index.html").read_text()
            first = body.partition("<h2>The strip of one")[0]
            plain = html.unescape(re.sub(r"<[^>]+>", " ", first.partition("</style>")[2]))
            kept[kind] = summary.text(look.read(at)), plain, json.loads(base.read_text())
        return kept[kind]

    return run


@pytest.mark.slow
def test_a_compiled_optimizer_with_a_schedule_is_named_by_its_guard(looked):
    text, page, base = looked("scheduled")
    first = text.partition("1. ")[2].partition("2. ")[0]
    assert line("opt.step()") in first and ", in torch/optim/adam.py:" in first
    assert "Adam.step was compiled" in first and "`self.param_groups[0]['betas'][0]` changes" in first
    assert "s of compiling" in first and "Avoid calling" not in text
    assert "torch's own, nothing to do" in text and "optimizer" in text
    assert "Adam.step was compiled" in page and "torch.compile" in page.partition("What was asked")[2]
    assert any("betas" in name for name in base["ranks"]["0"]["again"]), "a gate names function and guard"


@pytest.mark.slow
def test_a_storm_says_how_many_calls_run_in_python(looked):
    text, page, base = looked("storm")
    for said in (text, page):
        assert "Layer.forward was compiled 8 times, then given up: the recompile limit" in said
        assert "4 of 12 calls a step run in Python" in said and "`self.rate` changes each time" in said
        assert line("torch.tanh") in said
    assert "make the number a tensor" in text
    assert any("self.rate" in name for name in base["ranks"]["1"]["again"])


@pytest.mark.slow
def test_the_break_of_the_program_stands_before_those_of_ddp(looked):
    text, page, _ = looked("chatty")
    first, _, rest = text.partition("torch's own")
    assert line("pprint.pformat") in first and "torch stopped at python/pprint.py:" in first
    assert "_inside_ddp_forward" not in text and "set_runtime_stats_and_log" not in text
    assert "nothing to do: 2 breaks of DDP, executed" in rest
    assert "Avoid calling" not in page.partition("torch's own")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "at", "said"),
    [
        ("sequential", "nn.Sequential(nn.Linear(8, 8), nn.ReLU())", "nothing was compiled: 5 calls"),
        ("unused", "what it returns is lost", "the compiled DistributedDataParallel.forward is never called"),
    ],
)
def test_a_compile_without_effect_is_said_with_the_line_that_made_it(looked, kind, at, said):
    text, page, _ = looked(kind)
    first = text.partition("1. ")[2].partition("\n")[0]
    assert first.startswith(line(at)) and said in first
    assert "no effect" in page.partition("What was asked")[2]


@pytest.mark.slow
def test_hooks_of_fsdp_are_torchs_own_and_the_advice_is_to_compile_blocks(looked):
    text, page, _ = looked("sharded")
    assert "compile the blocks instead of the whole model" in text
    assert "function `disable`" not in text.partition("1. ")[2].partition("torch's own")[0]
    assert "torch/distributed/fsdp/" in page


@pytest.mark.slow
def test_a_compile_on_one_rank_only_is_a_difference_everywhere(looked):
    text, page, _ = looked("one_rank")
    # torch 2.15 compiles DDP's own `inner` again, too
    assert re.search(r"ranks differ: recompiles: 0 on rank 0, [12] on rank 1", text)
    assert "dimension 0 of `x` changes (4 -> 6)" in text and "all ranks did the same" not in text
    assert "Ranks differ" in page


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scheduled", "chatty", "sharded", "sequential"])
def test_no_share_is_above_the_whole(looked, kind):
    text, _, _ = looked(kind)
    assert all(int(share) <= 100 for share in re.findall(r"\((\d+)%\)", text))


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        (
            "tensor 'x' dtype mismatch. expected Float, actual Double",
            "the dtype of `x` changes (Float -> Double)",
        ),
        ("GLOBAL_STATE changed: grad_mode ", "gradients are on in one call and off in another (`grad_mode`)"),
        ("len(self.items) == 3", "the length of `self.items` changes (it was 3)"),
        ("L['self']._modules['a'].rate == 0.1", "`self.a.rate` changes (it was 0.1)"),
        (
            "tensor 'p' rank mismatch. expected 2, actual 3",
            "the number of dimensions of `p` changes (2 -> 3)",
        ),
        (
            "expected type of 'p' to be a tensor type, ' but found <class 'NoneType'>",
            "`p` is a tensor in one call and None in another",
        ),
    ],
)
def test_a_guard_in_words(guard, said):
    assert words(guard) == said
