"""Trains a tiny Llama: python decoder.py ddp | fsdp | tp [--print] [--branch] [--backend NAME] [--layers N].

Plain torch and transformers: it knows nothing of oddrank. Under torchrun it would do the same.
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM


class Chatty(torch.nn.Module):
    """A layer norm of the model, with what somebody left in it."""

    def __init__(self, norm, print_it, branch):
        super().__init__()
        self.norm, self.print_it, self.branch = norm, print_it, branch

    def forward(self, x):
        if self.print_it:
            print("norm of", tuple(x.shape))
        if self.branch and dist.get_rank() == 1:
            x = x * 1.0
        return self.norm(x)


def build(given):
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=4)
    config = LlamaConfig(vocab_size=128, num_hidden_layers=given.layers, use_cache=False, **sizes)
    model = LlamaForCausalLM(config)
    if given.print or given.branch:
        model.model.norm = Chatty(model.model.norm, given.print, given.branch)
    if given.parallel == "ddp":
        return torch.compile(DistributedDataParallel(model), backend=given.backend)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        if given.parallel == "fsdp":
            fully_shard(layer, mesh=mesh)
        else:
            plan = {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel()}
            parallelize_module(layer, mesh, {**plan, "mlp.down_proj": RowwiseParallel()})
    if given.parallel == "fsdp":
        fully_shard(model, mesh=mesh)
    return torch.compile(model, backend=given.backend)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parallel", choices=("ddp", "fsdp", "tp"))
    parser.add_argument("--print", action="store_true")
    parser.add_argument("--branch", action="store_true")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--layers", type=int, default=2)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    model = build(given)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        tokens = torch.randint(0, 128, (2, 16))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
