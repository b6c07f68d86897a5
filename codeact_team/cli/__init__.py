"""The command line: parse, call, print."""

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    # an interrupt while this imports ends it without a traceback; `reported` reports a later one
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from codeact_team.cli.app import main

    main()
