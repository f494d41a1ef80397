"""The lesson on the claim ledger: its experiments, figures, exercises and claims."""
