"""The command line: the parser of all commands, the terminal, and the commands of checkpoints."""
