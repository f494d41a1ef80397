"""The claims of the lesson on data-parallel training."""
