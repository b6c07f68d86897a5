"""A real browser, and a server that hears of each request that a page makes."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, Request, sync_playwright

_PATIENCE = 90_000
"""Milliseconds; a busy machine takes its time."""


@dataclass
class Elsewhere:
    """A server that a page must not ask for anything.

    Attributes:
        url: Of something there.
        requests: What it was asked for.
    """

    url: str
    requests: list[str] = field(default_factory=list[str])


@dataclass
class Opened:
    """A page in the browser.

    Attributes:
        page: As Playwright has it.
        dialogs: What it has shown in a dialog.
        said: What it, or the browser about it, has said at the console.
        requests: The addresses that it has asked for, its own and those of what is in it left out.
    """

    page: Page
    dialogs: list[str] = field(default_factory=list[str])
    said: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        """All of its text, folded or not."""
        return self.page.evaluate("document.body.textContent")

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()


@contextmanager
def chromium() -> Generator[Browser]:
    """This machine's browser. Within it nothing can run an event loop in this thread."""
    if (path := shutil.which("chromium")) is None:
        pytest.skip("there is no browser: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, timeout=_PATIENCE)
        yield browser
        browser.close()


@contextmanager
def listening() -> Generator[Elsewhere]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.requests.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told = Elsewhere(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield told
        server.shutdown()
        thread.join()


@contextmanager
def open_page(browser: Browser, path: Path) -> Generator[Opened]:
    """Open a file, and wait until nothing of it is loaded any more."""
    with browser.new_page() as page:
        page.set_default_timeout(_PATIENCE)
        opened = Opened(page)

        def dismiss(dialog: Dialog) -> None:
            opened.dialogs.append(dialog.message)
            dialog.dismiss()

        def note(request: Request) -> None:
            if request.url != path.as_uri() and not request.url.startswith("data:"):
                opened.requests.append(request.url)

        page.on("dialog", dismiss)
        page.on("console", lambda message: opened.said.append(message.text))
        page.on("pageerror", lambda error: opened.said.append(str(error)))
        page.on("request", note)
        page.goto(path.as_uri(), wait_until="networkidle")
        yield opened
