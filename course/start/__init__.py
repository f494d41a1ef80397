"""The lesson on start here: its experiments, figures, exercises and claims."""
