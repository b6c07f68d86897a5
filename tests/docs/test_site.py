"""The pages as they are built: by one command, for any width, in the light and in the dark, and for who does not see them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import pytest
from documents import DOCS, PAGES
from playwright.sync_api import Browser
from support.browsing import Opened, chromium, open_page

pytestmark = pytest.mark.long

QUESTIONS = {
    "How do I give it an Excel file?": ("guides/data", "sales.xlsx"),
    "Why was this denied?": ("guides/approval", "Why was this denied?"),
    "How do I go on after Ctrl-C?": ("guides/runs", "Go on after Ctrl-C"),
    "How do I run it without Docker?": ("guides/platforms", "Run it without Docker"),
    "How do I test my agent in CI?": ("guides/testing", "replay_run"),
}
NAMES = [name for name in PAGES if name != "README"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(built / ".doctrees")]
    result = subprocess.run([*command, str(DOCS), str(built)], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return built


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with chromium() as browser:
        yield browser


def background(opened: Opened) -> int:
    """How light the page is, from 0 to 765."""
    color = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", color)[:3]))


def headings(opened: Opened) -> list[int]:
    found = opened.page.locator("h1, h2, h3, h4, h5, h6").evaluate_all("all => all.map(each => each.tagName)")
    return [int(name[1]) for name in found]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_every_screen_and_is_read_aloud(name: str, site: Path, browser: Browser) -> None:
    with open_page(browser, site / f"{name}.html") as opened:
        page = opened.page
        assert not opened.said
        assert all(request.startswith(site.as_uri()) for request in opened.requests)
        lightness = dict[str, int]()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (400, 1400):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (scheme, width)
            lightness[scheme] = background(opened)
        assert lightness["light"] > 600 > 200 > lightness["dark"]
        levels = headings(opened)
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert all(page.locator("img").evaluate_all("all => all.map(each => each.alt)"))
        spoken = page.locator("body").aria_snapshot()
        assert "- main" in spoken or "- article" in spoken
        assert not re.search(r"^\s*- (link|button)(:|$)", spoken, re.MULTILINE), "one without a name"


@pytest.mark.parametrize(("question", "answer"), QUESTIONS.items())
def test_a_newcomers_question_is_one_click_away(
    question: str, answer: tuple[str, str], site: Path, browser: Browser
) -> None:
    name, words = answer
    with open_page(browser, site / "index.html") as opened:
        opened.page.get_by_role("link", name=question).click()
        opened.page.wait_for_url(re.compile(rf"{name}\.html"))
        assert words in opened.page.locator("article").inner_text()


@pytest.mark.parametrize(
    "words", ["excel", "denied", "resume", "confined", "replay_run", "max_retries_on_error"]
)
def test_search_finds_a_page(words: str, site: Path, browser: Browser) -> None:
    with open_page(browser, site / "search.html") as opened:
        opened.page.goto(f"{(site / 'search.html').as_uri()}?q={words}")
        opened.page.locator("ul.search li a").first.wait_for()


def test_the_list_of_pages_for_a_model_leads_to_all_of_them(site: Path) -> None:
    listed = re.findall(r"^- \[.+\]\((.+)\): .+\.$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(f"{name}.html" for name in NAMES if name != "index")
    assert all((site / file).is_file() for file in listed)
