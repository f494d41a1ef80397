"""The lesson on one compile for all ranks: its experiment, figures, exercises and claims."""
