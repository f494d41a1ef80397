"""Rank 0 is in oddrank's own work, which never ends here, when rank 1 dies: python dying.py FILE STEP."""

import os
import sys
import time

import oddrank.look.program as program
import torch
import torch.distributed as dist


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
