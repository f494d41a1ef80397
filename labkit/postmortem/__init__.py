"""`labkit postmortem`: what a dead or hanging job left behind, joined to one verdict. Imports no torch."""
