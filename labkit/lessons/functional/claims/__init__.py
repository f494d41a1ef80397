"""The claims of the lesson on in-place and functional collectives."""
