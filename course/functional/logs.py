"""What two jobs of two ranks wrote: `TORCH_LOGS=aot_graphs torchrun --nproc-per-node 2 job.py`, torch 2.13, gloo.

Cut: the prefix of each line, `; name = None` at the end of a line, and the middle of the warning.
"""

from __future__ import annotations

__all__ = ["LOGS"]

# By job and rank. Job A calls its function twice, and before the second call rank 1 sleeps for 0.3 s, so rank 0 always
# reads too early; its line 12 is `if debug:`, and debug is set on rank 1 only. Job B also prints the schema of the
# operator that its line 23 calls: torch.ops.team.sum_(y, world).
LOGS = {
    "A": {
        0: """\
===== Forward graph 0 =====
def forward(self, arg0_1: "f32[2][1]cpu"):
    # File: job.py:11 in step, code: y = op.all_reduce(x * 2, "sum", world)
    mul: "f32[2][1]cpu" = torch.ops.aten.mul.Tensor(arg0_1, 2)
    all_reduce: "f32[2][1]cpu" = torch.ops._c10d_functional.all_reduce.default(mul, 'sum', '0')
    # File: job.py:14 in step, code: return y + 1
    add: "f32[2][1]cpu" = torch.ops.aten.add.Tensor(all_reduce, 1)
    return (add,)
rank 0 x=[1.0, 2.0] result=[3.0, 5.0]
[W ProcessGroup.cpp:390] Warning: At the time of process termination, there are still 2 unwaited collective calls.
[...] before the output tensors of the collective are used. (function ~WorkRegistry)
""",
        1: """\
===== Forward graph 0 =====
def forward(self, arg0_1: "f32[2][1]cpu"):
    # File: job.py:11 in step, code: y = op.all_reduce(x * 2, "sum", world)
    mul: "f32[2][1]cpu" = torch.ops.aten.mul.Tensor(arg0_1, 2)
    all_reduce: "f32[2][1]cpu" = torch.ops._c10d_functional.all_reduce.default(mul, 'sum', '0')
    # File: job.py:13 in step, code: y = op.wait_tensor(y)
    wait_tensor: "f32[2][1]cpu" = torch.ops._c10d_functional.wait_tensor.default(all_reduce)
    # File: job.py:14 in step, code: return y + 1
    add: "f32[2][1]cpu" = torch.ops.aten.add.Tensor(wait_tensor, 1)
    return (add,)
rank 1 x=[10.0, 20.0] result=[23.0, 45.0]
""",
    },
    "B": {
        0: """\
===== Forward graph 0 =====
def forward(self, arg0_1: "f32[2][1]cpu"):
    # File: job.py:22 in step, code: y = x * 2
    mul: "f32[2][1]cpu" = torch.ops.aten.mul.Tensor(arg0_1, 2)
    # File: job.py:24 in step, code: return y + 1
    add: "f32[2][1]cpu" = torch.ops.aten.add.Tensor(mul, 1)
    return (add,)
torch.ops.team.sum_.default._schema: team::sum_(Tensor y, str group) -> ()
rank 0 x=[1.0, 2.0] result=[3.0, 5.0]
""",
        1: """\
===== Forward graph 0 =====
def forward(self, arg0_1: "f32[2][1]cpu"):
    # File: job.py:22 in step, code: y = x * 2
    mul: "f32[2][1]cpu" = torch.ops.aten.mul.Tensor(arg0_1, 2)
    # File: job.py:24 in step, code: return y + 1
    add: "f32[2][1]cpu" = torch.ops.aten.add.Tensor(mul, 1)
    return (add,)
torch.ops.team.sum_.default._schema: team::sum_(Tensor y, str group) -> ()
rank 1 x=[10.0, 20.0] result=[21.0, 41.0]
""",
    },
}
