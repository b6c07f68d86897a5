"""Tools of the host that code in a sandbox may call: AutoGen's, functions, and any workbench, MCP servers included.

What a tool does is done on the host; what is told of it comes from its JSON schema; what code passes is checked here
again; and what it returns becomes values and media.
"""

from codeact_team.tools.content import ToolFailed
from codeact_team.tools.functions import Tool
from codeact_team.tools.offer import HANDFUL, Offer, OfferedTool
from codeact_team.tools.toolbox import Toolbox

__all__ = ["HANDFUL", "Offer", "OfferedTool", "Tool", "ToolFailed", "Toolbox"]
