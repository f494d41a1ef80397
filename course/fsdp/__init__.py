"""The lesson on sharded data-parallel training: its experiments, figures, exercises and claims."""
