"""The lesson on reading graphs: its experiments, figures, exercises and claims."""
