"""Calls of the operating system by hand: standard library only, for CPython 3.10, inside sandboxes and outside."""
