"""Trains six steps with a graph break, collectives in and outside of compiled code, and a group of each rank's own.

The fifth step has a longer batch, and compiles again.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol


class Block(torch.nn.Module):
    def __init__(self, pair):
        super().__init__()
        self.pair, self.linear = pair, torch.nn.Linear(8, 8)

    def forward(self, x):
        x = funcol.all_reduce(self.linear(x).sin(), "sum", self.pair)
        torch._dynamo.graph_break()
        return x.cos()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    pair = dist.new_group([0, 1])
    torch.manual_seed(0)
    blocks = [torch.compile(Block(pair), backend="eager") for _ in range(2)]
    optimizer = torch.optim.SGD([p for block in blocks for p in block.parameters()], lr=0.1)
    for turn in range(6):
        x = torch.ones(7 if turn == 4 else 4, 8)
        for block in blocks:
            x = block(x)
            if rank == 0:  # in a group of its own: no other rank has a part in it
                dist.all_reduce(torch.ones(2), group=alone)
        x.sum().backward()
        for block in blocks:
            dist.all_reduce(block.linear.weight.grad, group=pair)
        optimizer.step()
        optimizer.zero_grad()
    print("</script><b>done</b>")


if __name__ == "__main__":
    main()
