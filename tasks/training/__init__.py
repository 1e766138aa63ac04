"""One loop for everything that trains."""
