"""The lesson on the eager trap: its program, figures and exercises."""
