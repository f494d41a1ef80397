"""The lessons as data: the program in their tagged cells, their parameters, and their execution without a browser."""

from labkit.lessons.programs import cells, execute, load, names_of, program

__all__ = ["cells", "execute", "load", "names_of", "program"]
