"""The claims of the lesson on cold and warm."""
