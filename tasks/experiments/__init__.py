"""Many trainings by one protocol: a grid of runs and its tables."""
