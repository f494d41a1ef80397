"""The lesson on cold and warm: its experiments, figures, exercises and claims."""
