"""The lesson on rank symmetry: its figures and exercises."""
