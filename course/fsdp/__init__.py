"""The lesson on sharded data-parallel training: its passes, figures and exercises."""
