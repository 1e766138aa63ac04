"""The feature-based approach: vectors of a frozen encoder, and what learns from them."""
