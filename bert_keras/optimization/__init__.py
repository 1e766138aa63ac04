"""Training of a model: losses, optimizers, schedules, the step under every strategy, and pre-training objectives."""
