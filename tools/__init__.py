"""What only developers run: executing and checking notebooks, the map of the course, sizes."""
