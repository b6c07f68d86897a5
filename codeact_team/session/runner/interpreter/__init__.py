"""The process in which Python blocks run: one namespace, and an account of each block."""
