"""The claims of the lesson on the eager trap."""
