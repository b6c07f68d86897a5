"""How the template begins, by :data:`~codeact_team.sandbox.confined.template.PROGRAM`.

Arguments: a descriptor to read what to load ahead from, and the directory to import sandlock from, if it is installed.
"""

from __future__ import annotations

import marshal

from loaded import LoadedProgram


def begin(arguments: list[str]) -> None:
    """Load, and let a thread serve from now on, whose forks are made by :func:`main_thread.obey`."""
    with open(int(arguments[0]), "rb") as file:
        said = marshal.load(file)
    program = None if said is None else LoadedProgram(*said)
    # only now: a fork finds what has been imported until then
    from template import serve

    serve(program, arguments[1:])
