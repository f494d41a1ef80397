"""Lesson 19: a new torch arrives."""
