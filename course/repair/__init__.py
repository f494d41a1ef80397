"""The lesson on a broken tensor-parallel service and its repair: experiment, figures, hints and checks."""
