"""The claims of the lesson on DTensor or explicit collectives."""
