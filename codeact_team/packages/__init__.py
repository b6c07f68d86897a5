"""Python packages for code in a sandbox, which has no network: resolved and unpacked by the host, mounted read-only."""

from codeact_team.packages.interpreters import Interpreter, describing, read_description
from codeact_team.packages.layers import Layer, Layers
from codeact_team.packages.requests import Requested

__all__ = ["Interpreter", "Layer", "Layers", "Requested", "describing", "read_description"]
