"""The lesson on mesh or world: its experiments, figures, exercises and claims."""
