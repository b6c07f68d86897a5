"""Runs inside a sandbox: compiles the modules on stdin, and answers each with the bytes of its .pyc file.

Both are bytes behind their length, four bytes long. What cannot be compiled is answered with nothing.
"""

import importlib.util
import marshal
import sys

_UNCHECKED_HASH = 1
"""It counts as compiled from its source whatever times the files have: neither ever changes."""


def _compiled(source: bytes) -> bytes:
    try:
        code = compile(source, "<package>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # such as a module for another version, which a package may hold
        return b""
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH.to_bytes(4, "little")
    return head + importlib.util.source_hash(source) + marshal.dumps(code)


def _compile_all() -> None:
    modules, compiled = sys.stdin.buffer, sys.stdout.buffer
    while length := modules.read(4):
        answer = _compiled(modules.read(int.from_bytes(length, "big")))
        compiled.write(len(answer).to_bytes(4, "big") + answer)
    compiled.flush()


_compile_all()
