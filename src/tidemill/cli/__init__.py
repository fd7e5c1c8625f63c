"""The command line: a file a command, parsing and printing only."""
