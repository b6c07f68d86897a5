"""Runs the Python blocks of a page, one after the other, on one event loop: each is a line of JSON on standard input."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
import linecache
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from types import CodeType, ModuleType


def main() -> None:
    # its classes and functions find their source and their annotations here, and its names replace none of this program
    sys.modules["__main__"] = module = ModuleType("__main__")
    namespace = module.__dict__
    replies = sys.stdout
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            block = json.loads(line)
            printed, warned, error = io.StringIO(), io.StringIO(), None
            name = f"{block['page']}:{block['line']}"
            linecache.cache[name] = (len(block["text"]), None, block["text"].splitlines(keepends=True), name)
            try:
                code = compile(block["text"], name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                with redirect_stdout(printed), redirect_stderr(warned):
                    run(runner, code, namespace)
            except BaseException:
                error = warned.getvalue() + traceback.format_exc()
            print(json.dumps({"printed": printed.getvalue(), "error": error}), file=replies, flush=True)


def run(runner: asyncio.Runner, code: CodeType, namespace: dict[str, object]) -> None:
    if code.co_flags & inspect.CO_COROUTINE:

        async def wait() -> None:
            await eval(code, namespace)

        runner.run(wait())
    else:
        exec(code, namespace)


if __name__ == "__main__":
    main()
