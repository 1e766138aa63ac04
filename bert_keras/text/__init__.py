"""The string column: text to features, in graph."""
