"""Vectors of a frozen encoder: extracted once, cached, written, and trained on."""
