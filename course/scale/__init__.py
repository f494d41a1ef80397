"""The lesson on beyond this machine: its figures and exercises."""
