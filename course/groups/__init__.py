"""The lesson on process groups: its experiments, figures, exercises and claims."""
