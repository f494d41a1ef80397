"""The exercises of the lesson on the eager trap."""
