"""The lesson on reading graphs: its exercises."""
