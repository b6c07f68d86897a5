"""A run as a page for a browser: one file that runs nothing and asks nobody for anything."""

from codeact_team.pages.page import write_page

__all__ = ["write_page"]
