"""Keras models that take strings."""
