"""A live rank: where it stands, the collectives and messages it is in, and how its part of a run ended."""
