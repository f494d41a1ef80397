"""The lesson on streams and events: its figures, exercises, and how its code is captured."""
