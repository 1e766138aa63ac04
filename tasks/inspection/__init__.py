"""A look inside a model: the attention of its heads, and the words that decided an answer."""
