"""The lesson on guards and shapes: its experiments, figures, exercises and claims."""
