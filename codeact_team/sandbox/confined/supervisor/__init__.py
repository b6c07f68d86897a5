"""The supervising process and its template: a program of its own, which imports nothing of what the host runs."""
