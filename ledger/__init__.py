"""A ledger of facts: what PyTorch does, since which version, and the check that tells.

`data/facts.toml` states each fact in a sentence. A check of the same name in `ledger/checks/` measures it on the
installed torch, and `data/recorded/torch-*/ledger.json` keeps what was measured on each version. `labkit ledger` runs
the checks.
"""
