"""Starts the template; see ``template.py``. Arguments: a descriptor to read what to load ahead from, and then those of it."""

from __future__ import annotations

import marshal
import sys

from loaded import LoadedProgram


def main() -> None:
    """Load, and serve."""
    with open(int(sys.argv[1]), "rb") as file:
        said = marshal.load(file)
    program = None if said is None else LoadedProgram(*said)
    # only now: a fork finds what has been imported until then
    from template import serve

    serve(program, sys.argv[2:])


if __name__ == "__main__":
    main()
