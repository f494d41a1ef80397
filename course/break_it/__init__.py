"""The lesson on the break-it tests: its figures and exercises."""
