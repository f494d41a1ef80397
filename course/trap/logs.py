"""What three jobs of two ranks wrote: `torchrun --nproc-per-node 2 job.py`, torch 2.13, gloo, CPU.

Cut: torchrun's own lines, the date and the place in torch's sources of each log line, four columns of the tables. Job B
ran under torch's profiler on both ranks.
"""

from __future__ import annotations

__all__ = ["LOGS"]

# Job A ran with TORCH_LOGS=recompiles, and its program is shown. Job B is a forward with eight all-reduces. Job C
# trains one layer; every rank has the whole loss.
LOGS = {
    "A": """\
16  for step in range(4):
17      h = funcol.all_reduce(torch.ones(2, 4), "sum", dist.group.WORLD)
18      if verbose and step % 2:
19          h = h.wait()  # for the log
20      ...
21      y = block(h)      # block is compiled

[rank1]: [0/1] [__recompiles] Recompiling function block in job.py:10
[rank1]: [0/1] [__recompiles]     triggered by the following guard failure(s):
[rank1]: [0/1] [__recompiles]     - 0/0: ___check_type_id(h, 94581312017120), \
type=<class 'torch.distributed._functional_collectives.AsyncCollectiveTensor'>\
  # return torch.relu(h) * 2  # job.py:12 in block (HINT: type AsyncCollectiveTensor)
rank 0: 32.0
rank 1: 32.0
""",
    "B": """\
rank 0                                     Self CPU     CPU total    # of Calls
_c10d_functional::wait_tensor              34.193ms      34.193ms             8
PythonSubclass                              2.021ms      36.423ms             8
c10d::allreduce_                          925.563us     925.563us             8
_c10d_functional::_wrap_tensor_autograd   751.956us     751.956us             8
_c10d_functional::all_reduce              612.909us       1.663ms             8
aten::mul                                 135.470us     316.366us             8
aten::relu                                133.868us      36.722ms            16
aten::copy_                                95.098us      95.098us            16
aten::clone                                38.677us     124.433us             8

rank 1                                     Self CPU     CPU total    # of Calls
c10d::allreduce_                          844.821us     844.821us             8
aten::mul                                 120.407us     290.862us             8
aten::relu                                 70.622us     217.258us             8
aten::copy_                                47.561us      47.561us             8
""",
    "C": """\
torch/autograd/graph.py:979: UserWarning: c10d::allreduce_: an autograd kernel was not registered \
to the Autograd key(s) but we are trying to \
backprop through it. This may lead to silently incorrect behavior.
rank 0 eager: loss 3.9395, gradient's norm 1.8598; one process: 1.8598
rank 0 compiled: loss 3.9395, gradient's norm 3.7195; one process: 1.8598
rank 1 eager: loss 3.9395, gradient's norm 2.1020; one process: 2.1020
rank 1 compiled: loss 3.9395, gradient's norm 4.2039; one process: 2.1020
""",
}
