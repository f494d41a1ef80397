"""The lesson on rank symmetry: its experiments, figures, exercises and claims."""
