"""The lesson on beyond this machine: its experiments, figures, exercises and claims."""
