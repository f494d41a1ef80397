"""What three jobs of two ranks wrote: `torchrun --nproc-per-node 2 job.py`, torch 2.13, gloo, CPU.

A job is lesson 13's model, or one of the same layers, under `torch.compile(DDP(...))`, with a communication hook
that sends over a simulated link (a sleep of 12 ms a message). Kept: from TORCH_LOGS=ddp_graphs the lines of the split
graph that call its parts, without the date; DDP's `rebuilt_bucket_sizes`; of the eighth step, in ms since a barrier,
the backward (to its last gradient) and the messages, each from this rank's entry to its end.
"""

from __future__ import annotations

__all__ = ["LOGS"]

LOGS = {
    "A": {
        0: """\
[__ddp_graphs] %submod_0 : [num_users=1] = call_module[target=submod_0](args = (%l_x_, %l_self_modules_blocks_mo\
dules_0_modules_up_parameters_weight_, %l_self_modules_blocks_modules_0_modules_down_parameters_weight_, %l_self\
_modules_blocks_modules_1_modules_up_parameters_weight_, %l_self_modules_blocks_modules_1_modules_down_parameter\
s_weight_, %l_self_modules_blocks_modules_2_modules_up_parameters_weight_, %l_self_modules_blocks_modules_2_modu\
les_down_parameters_weight_), kwargs = {})
[__ddp_graphs] %submod_1 : [num_users=1] = call_module[target=submod_1](args = (%submod_0, %l_self_modules_block\
s_modules_3_modules_up_parameters_weight_, %l_self_modules_blocks_modules_3_modules_down_parameters_weight_, %l_\
self_modules_head_parameters_weight_), kwargs = {})
rebuilt_bucket_sizes: 4204544
backward 31-129 ms
message 4,204,544 B 133-152 ms
step ends 155 ms
""",
        1: """\
[__ddp_graphs] %submod_0 : [num_users=1] = call_module[target=submod_0](args = (%l_x_, %l_self_modules_blocks_mo\
dules_0_modules_up_parameters_weight_, %l_self_modules_blocks_modules_0_modules_down_parameters_weight_, %l_self\
_modules_blocks_modules_1_modules_up_parameters_weight_, %l_self_modules_blocks_modules_1_modules_down_parameter\
s_weight_, %l_self_modules_blocks_modules_2_modules_up_parameters_weight_, %l_self_modules_blocks_modules_2_modu\
les_down_parameters_weight_), kwargs = {})
[__ddp_graphs] %submod_1 : [num_users=1] = call_module[target=submod_1](args = (%submod_0, %l_self_modules_block\
s_modules_3_modules_up_parameters_weight_, %l_self_modules_blocks_modules_3_modules_down_parameters_weight_, %l_\
self_modules_head_parameters_weight_), kwargs = {})
rebuilt_bucket_sizes: 4204544
backward 32-129 ms
message 4,204,544 B 130-148 ms
step ends 149 ms
""",
    },
    "B": {
        0: """\
[__ddp_graphs] %submod_0 : [num_users=1] = call_module[target=submod_0](args = (%l_x_, %l_self_modules_blocks_mo\
dules_0_modules_up_parameters_weight_, %l_self_modules_blocks_modules_0_modules_down_parameters_weight_), kwargs\
 = {})
[__ddp_graphs] %submod_1 : [num_users=1] = call_module[target=submod_1](args = (%submod_0, %l_self_modules_block\
s_modules_1_modules_up_parameters_weight_, %l_self_modules_blocks_modules_1_modules_down_parameters_weight_), kw\
args = {})
[__ddp_graphs] %submod_2 : [num_users=1] = call_module[target=submod_2](args = (%submod_1, %l_self_modules_block\
s_modules_2_modules_up_parameters_weight_, %l_self_modules_blocks_modules_2_modules_down_parameters_weight_), kw\
args = {})
[__ddp_graphs] %submod_3 : [num_users=1] = call_module[target=submod_3](args = (%submod_2, %l_self_modules_block\
s_modules_3_modules_up_parameters_weight_, %l_self_modules_blocks_modules_3_modules_down_parameters_weight_, %l_\
self_modules_head_parameters_weight_), kwargs = {})
rebuilt_bucket_sizes: 1048576, 1058816, 1048576, 1048576
backward 23-68 ms
message 1,048,576 B 35-112 ms
message 1,058,816 B 112-132 ms
message 1,048,576 B 132-146 ms
message 1,048,576 B 146-160 ms
step ends 161 ms
""",
        1: """\
[__ddp_graphs] %submod_0 : [num_users=1] = call_module[target=submod_0](args = (%l_x_, %l_self_modules_blocks_mo\
dules_0_modules_up_parameters_weight_, %l_self_modules_blocks_modules_0_modules_down_parameters_weight_), kwargs\
 = {})
[__ddp_graphs] %submod_1 : [num_users=1] = call_module[target=submod_1](args = (%submod_0, %l_self_modules_block\
s_modules_1_modules_up_parameters_weight_, %l_self_modules_blocks_modules_1_modules_down_parameters_weight_), kw\
args = {})
[__ddp_graphs] %submod_2 : [num_users=1] = call_module[target=submod_2](args = (%submod_1, %l_self_modules_block\
s_modules_2_modules_up_parameters_weight_, %l_self_modules_blocks_modules_2_modules_down_parameters_weight_), kw\
args = {})
[__ddp_graphs] %submod_3 : [num_users=1] = call_module[target=submod_3](args = (%submod_2, %l_self_modules_block\
s_modules_3_modules_up_parameters_weight_, %l_self_modules_blocks_modules_3_modules_down_parameters_weight_, %l_\
self_modules_head_parameters_weight_), kwargs = {})
rebuilt_bucket_sizes: 1048576, 1058816, 1048576, 1048576
backward 85-129 ms
message 1,048,576 B 99-113 ms
message 1,058,816 B 113-132 ms
message 1,048,576 B 132-146 ms
message 1,048,576 B 146-160 ms
step ends 161 ms
""",
    },
    "C": {
        0: """\
rebuilt_bucket_sizes: 1058816, 1048576, 1048576, 1048576
backward 54-116 ms
message 1,058,816 B 78-94 ms
message 1,048,576 B 94-107 ms
message 1,048,576 B 108-121 ms
message 1,048,576 B 121-135 ms
step ends 136 ms
""",
        1: """\
rebuilt_bucket_sizes: 1058816, 1048576, 1048576, 1048576
backward 45-118 ms
message 1,058,816 B 70-95 ms
message 1,048,576 B 95-109 ms
message 1,048,576 B 109-123 ms
message 1,048,576 B 123-137 ms
step ends 138 ms
""",
    },
}
