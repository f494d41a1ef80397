"""The claims of the lesson on streams and events."""
