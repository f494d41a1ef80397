"""The lesson on a broken tensor-parallel service and its repair: its measurement, figures, hints and checks."""
