"""The claims of the lesson on reading graphs."""
