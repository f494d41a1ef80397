"""The lesson on streams under torch.compile: its figures, exercises, and the graphs that it looks at."""
