"""The lesson on in-place and functional collectives: its experiments, figures, exercises and claims."""
