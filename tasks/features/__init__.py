"""The feature-based approach: vectors from a frozen encoder, and a tagger that learns from them."""
