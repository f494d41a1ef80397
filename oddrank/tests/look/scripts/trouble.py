"""Runs ten small steps, and makes trouble on rank 1 in the eighth: python trouble.py KIND."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist


@torch.compile(backend="eager")
def step(x):
    return x.sin() + 1


def trouble(kind):
    if kind == "raise":
        raise ValueError("the loss is nan")
    if kind == "exit":
        sys.exit(7)
    if kind == "die":
        os._exit(5)
    if kind == "hang":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(0.1)
    if kind == "leave":
        sys.exit()  # in good health, and the others wait for it
    if kind == "calm":  # what a script may do
        os.chdir("/")
        if os.fork() == 0:
            sys.exit()
        if os.fork() == 0:
            time.sleep(1000)
        for number in range(100_000):
            print(number)


def main():
    dist.init_process_group("gloo")
    for turn in range(10):
        total = step(torch.ones(4))
        dist.all_reduce(total)
        if turn == 7 and dist.get_rank() == 1:
            trouble(sys.argv[1])


if __name__ == "__main__":
    main()
