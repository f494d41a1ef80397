"""The exercises of the lesson on in-place and functional collectives."""
