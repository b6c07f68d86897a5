"""The agent that acts by writing Python."""
