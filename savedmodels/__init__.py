"""SavedModels that take raw strings."""
