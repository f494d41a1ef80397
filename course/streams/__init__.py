"""The lesson on streams and events: its experiments, figures, exercises and claims."""
