"""The claims of the lesson on mesh or world."""
