"""The lesson on the graph-break cliff: its experiments, figures, exercises and claims."""
