"""The claims of the lesson on the graph-break cliff."""
