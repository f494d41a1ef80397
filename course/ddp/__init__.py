"""The lesson on data-parallel training: its clock, drills and exercises."""
