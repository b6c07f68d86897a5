"""Python packages for code in a sandbox, which has no network: resolved and unpacked by the host, mounted read-only."""

from codeact_team.packages.interpreters import Interpreter
from codeact_team.packages.layers import Layer, Layers
from codeact_team.packages.provision import Provision, interpreter_in
from codeact_team.packages.requests import Requested

__all__ = ["Interpreter", "Layer", "Layers", "Provision", "Requested", "interpreter_in"]
