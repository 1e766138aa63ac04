"""From a corpus to a pre-trained encoder."""
