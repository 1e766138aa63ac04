"""The commands of tasks, each a row of COMMANDS beside its flags."""
