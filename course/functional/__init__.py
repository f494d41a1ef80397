"""The lesson on in-place and functional collectives: its figures and exercises."""
