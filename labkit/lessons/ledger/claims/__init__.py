"""The claims of the lesson on the claim ledger."""
