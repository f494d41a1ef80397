"""The lesson on DTensor or explicit collectives: its experiments, figures, exercises and claims."""
