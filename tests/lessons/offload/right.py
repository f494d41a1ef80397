"""A right answer to the exercise of lesson 07b in other words than those of the solution."""

from __future__ import annotations

import torch


def by_counting(forward, backward):
    """Goes through the nodes once, and counts products."""
    product, waiting = torch.ops.aten.mm.default, []
    for node in list(forward.nodes):
        if node.target is torch.ops.ao.wait_tensor.default:
            waiting.append([node, 3])
        elif node.target is product:
            for one in waiting:
                one[1] -= 1
                if one[1] == 0:
                    node.append(one[0])
    for node, left in waiting:
        if 0 < left < 3:
            last = [n for n in forward.nodes if n.target is product][-1]
            last.append(node)
    seen = []
    for node in list(backward.nodes):
        if node.target is product:
            seen.append(node)
        elif node.target is torch.ops.ao.reload.default and seen:
            seen[max(0, len(seen) - 6)].prepend(node)


RIGHT = {"offload.schedule": (by_counting,)}
