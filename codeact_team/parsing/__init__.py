"""Code in chat messages: finding it, and making sure that it is not found.

Fences follow CommonMark, followed by a bounded repair of what models really write; ``<execute>`` blocks are read as well.
"""

from codeact_team.parsing.extraction import Extraction, extract_code
from codeact_team.parsing.inert import make_inert
from codeact_team.parsing.labels import language_of

__all__ = ["Extraction", "extract_code", "language_of", "make_inert"]
