"""The exercises of the lesson on reading graphs."""
