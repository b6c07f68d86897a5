"""A living Python interpreter inside a sandbox: the protocol, the program inside, and the host's half.

:mod:`~codeact_team.session.protocol` and :mod:`~codeact_team.session.runner` also run inside the sandbox: they are
for CPython 3.10 and need nothing but the standard library.
"""
