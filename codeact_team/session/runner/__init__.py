"""The programs inside the sandbox: a supervisor, which owns the stream to the host, and the interpreter, its child.

Neither imports from the other: they are two processes.
"""
