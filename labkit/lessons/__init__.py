"""What belongs to the lessons: a package for each topic, and `shared` for what several topics use."""
