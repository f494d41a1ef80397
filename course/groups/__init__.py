"""The lesson on process groups: its figures, exercises, and processes that meet at a store."""
