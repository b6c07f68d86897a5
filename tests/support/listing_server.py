"""An MCP server over stdio that starts at once, as it imports next to nothing: it lists tools, and never answers a call.

Its argument is JSON: its name, and the pages of its list.
"""

from __future__ import annotations

import json
import sys

name, pages = json.loads(sys.argv[1])
result: object
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        result = {
            "protocolVersion": "2025-03-26",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": name, "version": "1"},
        }
    elif request["method"] == "tools/list":
        page = int(request.get("params", {}).get("cursor", 0))
        result = {"tools": pages[page]} | ({"nextCursor": str(page + 1)} if pages[page + 1 :] else {})
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
