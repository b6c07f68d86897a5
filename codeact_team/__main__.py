"""``python -m codeact_team``: the command line."""

from __future__ import annotations

from codeact_team.cli import main

if __name__ == "__main__":
    main()
