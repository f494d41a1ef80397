"""The claims of the lesson on streams under torch.compile."""
