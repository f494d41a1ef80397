"""Eight layers of one class behind a compiled network: python odd_layer.py KIND. Plain torch: no oddrank."""

import sys

import torch
from torch import nn

KIND = sys.argv[1]
SIZE, LAYERS, ODD = 8, 8, 3


@torch.compiler.disable
def hidden(x):
    return x * 2


def plain(x):
    return x * 2


class Out(nn.Module):
    def __init__(self, inside, verbose, call):
        super().__init__()
        self.linear, self.verbose, self.call = nn.Linear(inside, SIZE, bias=False), verbose, call

    def forward(self, x):
        y = self.linear(x)
        if self.verbose:
            print(end="")
        return self.call(y)


class Block(nn.Module):
    def __init__(self, inside=16, verbose=False, call=plain):
        super().__init__()
        self.up, self.out = nn.Linear(SIZE, inside), Out(inside, verbose, call)

    def forward(self, x):
        return x + self.out(torch.tanh(self.up(x)))


class OddBlock(Block):
    pass


class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


MAKE = {
    "print": lambda i: Block(verbose=i == ODD),
    "hidden": lambda i: Block(call=hidden if i == ODD else plain),
    "own": lambda i: OddBlock(call=hidden) if i == ODD else Block(),
    "all": lambda i: Block(verbose=True, call=hidden),
    "one": lambda i: Block(call=hidden) if i == ODD else nn.Linear(SIZE, SIZE),
    "sizes": lambda i: Block(inside=16 + 4 * i),
}

net = Net(MAKE[KIND](i) for i in range(LAYERS))
if KIND == "sizes":  # each by itself, since nothing breaks the network
    for layer in net.layers:
        layer.compile(backend="eager")
    call = net
else:
    call = torch.compile(net, backend="aot_eager")
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for _ in range(5):
    call(torch.ones(4, SIZE, requires_grad=True)).square().mean().backward()
    opt.step()
    opt.zero_grad()
