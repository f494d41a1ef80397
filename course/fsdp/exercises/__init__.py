"""The exercises of the lesson on sharded training."""
