"""Ranks on the machines that torchrun has gathered: one process drives, the others start ranks when it asks.

torchrun starts a process for each rank on every machine, and they find each other by torch elastic's rendezvous. The
process of rank 0 is the driver: it runs the experiment, as a notebook kernel would. Every other one is an agent, which
starts its rank and hands the rank's sockets to the driver. So a rank that failed can be replaced, and every experiment
runs unchanged. Messages are pickles, as in torch.distributed: the network must be trusted.
"""

from __future__ import annotations

from labkit.ranks.nodes.agent import serve
from labkit.ranks.nodes.driver import Nodes
from labkit.ranks.nodes.launch import Launch, launched

__all__ = ["Launch", "Nodes", "launched", "serve"]
