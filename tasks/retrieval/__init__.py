"""Search with text vectors: an index of a collection, its nearest texts, and measures of vectors."""
