"""What three jobs of two ranks wrote: `torchrun --nproc-per-node 2 job.py`, torch 2.13, gloo, CPU.

Cut: torchrun's own lines, the date and the place in torch's sources of each log line, most columns of the tables. Job B
ran over gloo, and again with torch's `fake` process group, there under torch's profiler on both ranks.
"""

from __future__ import annotations

__all__ = ["LOGS"]

# Job A ran with TORCH_LOGS=recompiles, and its program is shown. Job B is a forward with eight all-reduces; its times
# are medians of seven. Job C trains one layer; every rank has the whole loss.
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
rank 0: 20 forwards over gloo in 403 ms
rank 1: 20 forwards over gloo in 399 ms
rank 0: 20 forwards over fake in 42 ms
rank 1: 20 forwards over fake in 3 ms

rank 0, fake                                Self CPU     CPU total    # of Calls
PythonSubclass                              24.570ms      25.678ms           160
_c10d_functional::_wrap_tensor_autograd     16.892ms      16.892ms           160
_c10d_functional::all_reduce                11.730ms      16.969ms           160
aten::empty_like                             4.227ms       4.483ms           160
aten::mul                                  919.814us       1.892ms           160
aten::clamp_min                            685.312us     685.312us           160
aten::copy_                                615.776us     615.776us           320
aten::relu                                 591.558us      26.955ms           320
aten::_to_copy                             341.569us     803.331us           160
aten::clone                                279.733us       5.108ms           160
aten::empty                                255.942us     255.942us           160
_c10d_functional::wait_tensor              195.378us     195.378us           160
aten::empty_strided                        190.848us     190.848us           160
aten::to                                   169.005us     972.336us           160

rank 1, fake                                Self CPU     CPU total    # of Calls
aten::mul                                  454.339us     892.648us           160
aten::clamp_min                            242.831us     242.831us           160
c10d::allreduce_                           239.604us     239.604us           160
aten::_to_copy                             164.605us     366.603us           160
aten::copy_                                108.593us     108.593us           160
aten::relu                                 105.694us     348.525us           160
aten::empty_strided                         93.405us      93.405us           160
aten::to                                    71.706us     438.309us           160
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
