"""Finds code and thoughts in chat messages, and makes text safe in which no code may be found.

Fences follow CommonMark, followed by a bounded repair of what models really write; blocks between tags
such as ``<execute>`` are read as well.
"""

from codeact_team.parsing.extraction import Extraction, extract_code, extract_from_reply
from codeact_team.parsing.labels import language_of
from codeact_team.parsing.quoting import as_data, make_inert, make_json_inert
from codeact_team.parsing.thoughts import Spoken, take_thoughts_off

__all__ = [
    "Extraction",
    "Spoken",
    "as_data",
    "extract_code",
    "extract_from_reply",
    "language_of",
    "make_inert",
    "make_json_inert",
    "take_thoughts_off",
]
