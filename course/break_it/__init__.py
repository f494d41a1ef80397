"""The lesson on the break-it tests: its experiments, figures, exercises and claims."""
