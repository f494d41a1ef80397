"""The lesson on one compile for all ranks: its figures and exercises."""
