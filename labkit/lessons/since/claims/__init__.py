"""The claims of the lesson on one compile for all ranks."""
