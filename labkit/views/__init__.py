"""The sheet to draw figures on, and their style. Never imports torch."""
