"""What a rank was about to report when another one died: look ends it while it still writes its record."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from oddrank import command as cli

# rank 0 is in oddrank's own work, which never ends here, when rank 1 dies
SCRIPT = """\
import os, sys, time
import torch, torch.distributed as dist
import oddrank.look.program as program


def endless(*args, **kwargs):
    open(sys.argv[1], "w").close()
    time.sleep(1000)


dist.init_process_group("gloo")
net = torch.compile(torch.nn.Linear(4, 4), backend="eager")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if dist.get_rank() == 0:
    program.report_of = endless
for step in range(6):
    net(torch.ones(2, 4)).sum().backward()
    if dist.get_rank() and step == 1:
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.05)
        os.abort()
    if step == int(sys.argv[2]):
        raise ArithmeticError("the loss is nan")
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, 99], ids=["on its way", "no failure"])
def test_where_a_rank_stood_while_labkit_worked(tmp_path: Path, monkeypatch, capsys, step: int) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    assert cli.main(["look", "train.py", str(tmp_path / "in look"), str(step)]) == 3
    said = capsys.readouterr().err
    assert "rank 1 died: killed by SIGABRT" in said
    about = said.partition("rank 0 ")[2]
    if step == 3:
        assert about.startswith("raised ArithmeticError: the loss is nan") and "train.py:23  raise" in about
    else:
        assert about.startswith("was here:") and "train.py:24  optimizer.step()" in about
    assert "oddrank/" not in about, said
