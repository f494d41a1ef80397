"""The exercises of the lesson on the graph-break cliff."""
