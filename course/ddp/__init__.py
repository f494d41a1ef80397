"""The lesson on data-parallel training: its experiments, figures, exercises and claims."""
