"""Ranks on the machines that torchrun has gathered: one process drives, the others start ranks when it asks them to.

torchrun starts a process a rank on every machine and finds them (torch elastic's rendezvous; that part is torch's).
Here rank 0's process runs the experiment, as a notebook kernel would; every other one is an agent that starts
its rank and hands the rank's sockets to the driver. A rank that failed can therefore be replaced, and every
experiment runs unchanged. Messages are pickles, as those of torch.distributed are: the network must be trusted.
"""

from __future__ import annotations

from labkit.ranks.nodes.agent import serve
from labkit.ranks.nodes.driver import Nodes
from labkit.ranks.nodes.launch import Launch, launched

__all__ = ["Launch", "Nodes", "launched", "serve"]
