"""The command line: parse, call, print."""

from codeact_team.cli.app import main

__all__ = ["main"]
