"""The lesson on streams under torch.compile: its experiments, figures, exercises and claims."""
