"""The supervising process: a program of its own, which imports nothing from the package around it."""
