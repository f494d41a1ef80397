"""The claims of the lesson on guards and shapes."""
