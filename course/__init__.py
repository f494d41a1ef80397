"""What only lessons import: a package for each topic, and `shared` for what several topics use."""
