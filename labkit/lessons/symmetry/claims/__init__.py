"""The claims of the lesson on rank symmetry."""
