"""The paper's tasks: data, features, labels, measures, training."""
