"""Three jobs on two ranks, each with two blocks: the ranges that FSDP2 marks in a step, and what the job prints then.

Recorded with torch 2.13 over gloo. Of the ranges, those that launch a collective are kept, and those that free weights.
Job B's group had a timeout of six seconds.
"""

from __future__ import annotations

__all__ = ["LOGS"]

_MICRO = """\
FSDP::all_gather
FSDP::all_gather (blocks.0)
FSDP::post_forward (blocks.0)
FSDP::all_gather (blocks.1)
FSDP::post_forward (blocks.1)
FSDP::post_forward
FSDP::all_gather (blocks.1)
FSDP::all_gather (blocks.0)
"""
_A = """\
FSDP::all_gather
FSDP::post_forward
FSDP::post_backward_reduce
gradients: those of one process
"""
LOGS = {
    "A": {0: _A, 1: _A},
    "B": {
        0: _MICRO
        + _MICRO
        + "FSDP::post_backward_reduce (blocks.1)\n"
        + "RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to "
        "complete\n",
        1: _MICRO
        + _MICRO
        + "FSDP::all_gather\nRuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer\n",
    },
    "C": {
        0: "one rank:  norm of all gradients 1.1737\ntwo ranks: norm of all gradients 0.5869\n",
        1: "two ranks: norm of all gradients 0.5869\n",
    },
}
