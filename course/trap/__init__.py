"""The lesson on the eager trap: its experiments, figures, exercises and claims."""
