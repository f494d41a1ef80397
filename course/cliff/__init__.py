"""The lesson on the graph-break cliff: its program, figures and exercises."""
