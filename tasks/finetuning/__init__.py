"""Fine-tuning: examples, the plan, and the monitor that measures each epoch."""
