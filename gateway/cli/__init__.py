"""The command line: the gateway itself, and its companions."""
