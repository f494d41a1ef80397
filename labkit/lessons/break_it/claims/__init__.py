"""The claims of the lesson on the break-it tests."""
