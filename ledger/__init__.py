"""A ledger of facts: what PyTorch does, since which version, and the trial that tells.

`data/facts.toml` states each fact in a sentence. A trial of the same name in `ledger/trials/` measures it on the
installed torch, and `data/recorded/torch-*/ledger.json` keeps what was measured on each version. `labkit ledger` runs
the trials.
"""
