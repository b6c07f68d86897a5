"""Finds out by trial what works on this machine and what a config lacks, and removes what killed runs have left."""

from codeact_team.doctor.checks import Check, Report, State
from codeact_team.doctor.configs import examine_config, missing_for
from codeact_team.doctor.machine import QUICKSTART_NEEDS, clean, examine

__all__ = [
    "QUICKSTART_NEEDS",
    "Check",
    "Report",
    "State",
    "clean",
    "examine",
    "examine_config",
    "missing_for",
]
