"""The lesson on mesh or world: its figures and exercises."""
