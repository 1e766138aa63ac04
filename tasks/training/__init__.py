"""The training loop, which fine-tuning, pre-training and the tagger share."""
