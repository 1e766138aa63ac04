"""Runs on disk: the folder that a training writes, and its readers."""
