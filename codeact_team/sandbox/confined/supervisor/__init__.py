"""The supervising process and its zygote: a program of its own, which imports nothing of what the host runs."""
