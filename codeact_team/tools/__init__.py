"""Tools of the host that code in a sandbox may call: AutoGen's, functions, and any workbench, MCP servers included.

A tool runs on the host. The sandbox is told its JSON schema as a Python signature. The arguments that code passes are
checked here, and what the tool returns becomes values and media.
"""

from codeact_team.tools.given_tools import Tool
from codeact_team.tools.offer import HANDFUL, Offer, OfferedTool
from codeact_team.tools.returned_values import ToolFailed
from codeact_team.tools.tool_sources import Listing
from codeact_team.tools.toolbox import Toolbox

__all__ = ["HANDFUL", "Listing", "Offer", "OfferedTool", "Tool", "ToolFailed", "Toolbox"]
