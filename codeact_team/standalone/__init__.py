"""One sandbox for a program of any kind, without an agent and without AutoGen's words."""
