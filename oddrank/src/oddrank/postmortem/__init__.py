"""`oddrank postmortem`: one verdict from what a dead or hanging job left. Imports no torch."""
