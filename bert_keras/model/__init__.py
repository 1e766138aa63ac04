"""The tensor column: layers, encoder and heads, in Keras 3."""
