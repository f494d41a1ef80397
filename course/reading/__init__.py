"""The lesson on reading graphs: its drawings and exercises."""
