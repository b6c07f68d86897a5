"""What an editor asks of pyright: the text at a word, by the Language Server Protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self


class LanguageServer:
    """Pyright as an editor starts it, for the files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # it asks the first Python of the path for its packages
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pyright.langserver", "--stdio"],
            cwd=directory,
            env=os.environ | {"PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._asked = 0

    def __enter__(self) -> Self:
        hover = {"contentFormat": ["plaintext"]}
        folder = {"uri": self._directory.as_uri(), "name": "program"}
        settings = {"capabilities": {"textDocument": {"hover": hover}}, "workspaceFolders": [folder]}
        self._ask("initialize", processId=None, rootUri=self._directory.as_uri(), **settings)
        self._send("initialized")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def open(self, file: Path) -> None:
        """Open a file, as an editor does."""
        document = {"uri": file.as_uri(), "languageId": "python", "version": 1, "text": file.read_text()}
        self._send("textDocument/didOpen", textDocument=document)

    def hover(self, file: Path, word: str, after: str) -> str:
        """What is shown when the mouse is over the first such word that follows a text."""
        source = file.read_text()
        before = source[: source.index(word, source.index(after))].split("\n")
        position = {"line": len(before) - 1, "character": len(before[-1])}
        shown = self._ask("textDocument/hover", textDocument={"uri": file.as_uri()}, position=position)
        return "" if shown is None else shown["contents"]["value"]

    def _ask(self, method: str, **params: Any) -> Any:
        self._asked += 1
        self._send(method, self._asked, **params)
        while (said := self._read()).get("id") != self._asked or "method" in said:
            if "id" in said:
                # it wants to know how the editor is set up, and nothing is
                self._write({"id": said["id"], "result": [None] * len(said["params"].get("items", ()))})
        return said["result"]

    def _send(self, method: str, number: int | None = None, **params: Any) -> None:
        self._write({"method": method, "params": params} | ({} if number is None else {"id": number}))

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(content), content))
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while header := self._process.stdout.readline().strip():
            name, _, value = header.partition(b":")
            if name == b"Content-Length":
                length = int(value)
        assert length, "it has ended"
        return json.loads(self._process.stdout.read(length))
