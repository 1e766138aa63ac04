"""The problems that a model solves: features, labels, heads and decoding of each."""
