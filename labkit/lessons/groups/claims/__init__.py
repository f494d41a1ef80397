"""The claims of the lesson on process groups."""
