"""What three jobs of two ranks wrote.

The jobs ran as `torchrun --nproc-per-node 2 job.py` on torch 2.13, gloo, CPU. Cut: torchrun's own lines, the date
and the place in torch's sources of each log line; of job A's backward graph the views, and rank 1's copy, which is the
same. The lines of job C are sorted by rank, and end after 640 tokens.
"""

from __future__ import annotations

__all__ = ["LOGS"]

# Job A ran with TORCH_LOGS=aot_graphs, and compares each gradient's norm with one process's. B and C ran with
# TORCH_LOGS=recompiles.
LOGS = {
    "A": """\
[rank0]: [__aot_graphs] ===== Backward graph 0 =====
[rank0]: [__aot_graphs] mm_4: "f32[16, 32]" = torch.ops.aten.mm.default(t_4, gelu_1)
[rank0]: [__aot_graphs] mm_5: "f32[8, 32]" = torch.ops.aten.mm.default(tangents_1, t_6)
[rank0]: [__aot_graphs] gelu_backward: "f32[8, 32]" = torch.ops.aten.gelu_backward.default(mm_5, mm_2)
[rank0]: [__aot_graphs] mm_6: "f32[32, 16]" = torch.ops.aten.mm.default(t_8, wait_tensor_1)
[rank0]: [__aot_graphs] mm_7: "f32[8, 16]" = torch.ops.aten.mm.default(gelu_backward, t_10)
[rank0]: [__aot_graphs] mm_8: "f32[16, 32]" = torch.ops.aten.mm.default(t_12, gelu)
[rank0]: [__aot_graphs] mm_9: "f32[8, 32]" = torch.ops.aten.mm.default(mm_7, t_14)
[rank0]: [__aot_graphs] gelu_backward_1: "f32[8, 32]" = torch.ops.aten.gelu_backward.default(mm_9, mm)
[rank0]: [__aot_graphs] mm_10: "f32[32, 16]" = torch.ops.aten.mm.default(t_16, primals_1)
[rank0]: [__aot_graphs] return (None, t_18, t_15, t_11, t_7)
rank 0: loss 14.9694
rank 0: layer 0, up: gradient / one process's 0.708
rank 0: layer 0, down: gradient / one process's 0.696
rank 0: layer 1, up: gradient / one process's 1.000
rank 0: layer 1, down: gradient / one process's 1.000
rank 1: loss 14.9694
rank 1: layer 0, up: gradient / one process's 0.488
rank 1: layer 0, down: gradient / one process's 0.537
rank 1: layer 1, up: gradient / one process's 1.000
rank 1: layer 1, down: gradient / one process's 1.000
""",
    "B": """\
rank 1: 4 rows, mine (2, 8)
rank 0: 4 rows, mine (2, 8)
rank 1: gathered (4, 8), sum 64
rank 1: 6 rows, mine (3, 8)
[rank1]: [0/1] [__recompiles] Recompiling function gathered in job.py:11
[rank1]: [0/1] [__recompiles]     triggered by the following guard failure(s):
[rank1]: [0/1] [__recompiles]     - 0/0: tensor 'x._local_tensor' size mismatch at index 0. expected 2, \
actual 3
rank 0: gathered (4, 8), sum 64
rank 0: 6 rows, mine (3, 8)
[rank0]: [0/1] [__recompiles] Recompiling function gathered in job.py:11
[rank0]: [0/1] [__recompiles]     triggered by the following guard failure(s):
[rank0]: [0/1] [__recompiles]     - 0/0: tensor 'x._local_tensor' size mismatch at index 0. expected 2, \
actual 3
rank 0: gathered (6, 8), sum 96
rank 0: 5 rows, mine (3, 8)
rank 1: gathered (6, 8), sum 96
rank 1: 5 rows, mine (2, 8)
[rank0]: [0/2] [__recompiles] Recompiling function gathered in job.py:11
[rank0]: [0/2] [__recompiles]     triggered by the following guard failure(s):
[rank0]: [0/2] [__recompiles]     - 0/1: x.size()[0] == 2*x._local_tensor.size()[0]  # return (x * \
2).redistribute(placements=[Replicate()]).to_local()  # job.py:13 in gathered \
(distributed/tensor/placement_types.py:576 in _maybe_unpad_tensor)
[rank0]: [0/2] [__recompiles]     - 0/0: tensor 'x._local_tensor' size mismatch at index 0. expected 2, \
actual 3
terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 48 vs 32. \
Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?
""",
    "C": """\
rank 0: 128 tokens, 51.1
[rank0]: [0/1] [__recompiles] Recompiling function inner in torch/_dynamo/external_utils.py:67
[rank0]: [0/1] [__recompiles]     triggered by the following guard failure(s):
[rank0]: [0/1] [__recompiles]     - 0/0: tensor 'args[0]' size mismatch at index 0. expected 128, actual 192
rank 0: 192 tokens, 76.6
rank 0: 256 tokens, 102.2
[rank0]: [0/2] [__recompiles] Recompiling function inner in torch/_dynamo/external_utils.py:67
[rank0]: [0/2] [__recompiles]     triggered by the following guard failure(s):
[rank0]: [0/2] [__recompiles]     - 0/1: 12.0 + 1000000.0*(((((2.0*((((((((1024*args[0].size()[0]) / 1) / \
1024.0)) / 1024.0)) / 1024.0))) / 2.0)) / 19.294)) <= 34.607414222037946  # return F.linear(input, \
self.weight, self.bias)  # nn/modules/linear.py:134 in forward (distributed/tensor/_sharding_prop.py:252 in \
_select_min_redistribute_cost)
rank 0: 640 tokens, 255.5
rank 1: 128 tokens, 51.1
[rank1]: [0/1] [__recompiles] Recompiling function inner in torch/_dynamo/external_utils.py:67
[rank1]: [0/1] [__recompiles]     triggered by the following guard failure(s):
[rank1]: [0/1] [__recompiles]     - 0/0: tensor 'args[0]' size mismatch at index 0. expected 128, actual 192
rank 1: 192 tokens, 76.6
rank 1: 256 tokens, 102.2
[rank1]: [0/2] [__recompiles] Recompiling function inner in torch/_dynamo/external_utils.py:67
[rank1]: [0/2] [__recompiles]     triggered by the following guard failure(s):
[rank1]: [0/2] [__recompiles]     - 0/1: 12.0 + 1000000.0*(((((2.0*((((((((1024*args[0].size()[0]) / 1) / \
1024.0)) / 1024.0)) / 1024.0))) / 2.0)) / 19.294)) <= 34.607414222037946  # return F.linear(input, \
self.weight, self.bias)  # nn/modules/linear.py:134 in forward (distributed/tensor/_sharding_prop.py:252 in \
_select_min_redistribute_cost)
rank 1: 640 tokens, 255.5
""",
}
