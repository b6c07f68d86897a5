"""Make an offer of all that the sources list: give each tool a name, and limit how many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codeact_team.errors import SettingError
from codeact_team.tools.identifiers import RESERVED, assign
from codeact_team.tools.offer import Offer, OfferedTool
from codeact_team.tools.tool_sources import ListedTool, Listing, ToolSource

MAX_TOOLS = 5000
MAX_DECLARATIONS = 2 * 1024 * 1024
"""How many bytes the declarations of all tools may have."""

Listings = Sequence[tuple[ToolSource, Listing]]


def assemble(listings: Listings) -> Offer:
    """Offer all tools that are listed, unless two without a server have the same name, one is broken, or there are too many."""
    if sum(len(listing.tools) for _, listing in listings) > MAX_TOOLS:
        raise _largest(listings).error(f"more than {MAX_TOOLS:,} tools are too many; offer fewer")
    tools = [_offered(name, listed, source) for name, listed, source in _named(listings)]
    size = sum(tool.size for tool in tools)
    if size > MAX_DECLARATIONS:
        raise _largest(listings).error(
            f"what there is to tell of {len(tools)} tools has {size:,} bytes, of which {MAX_DECLARATIONS:,} are "
            "allowed; offer fewer tools"
        )
    return Offer(tools)


def _offered(name: str, listed: ListedTool, source: ToolSource) -> OfferedTool:
    try:
        return OfferedTool(name, listed, source)
    except (ValueError, TypeError, RecursionError) as error:
        raise source.error(f"the schema of the tool {listed.name[:100]!r} cannot be used: {error}") from error


def _largest(listings: Listings) -> ToolSource:
    return max(listings, key=lambda each: len(each[1].tools))[0]


def _named(listings: Listings) -> Iterator[tuple[str, ListedTool, ToolSource]]:
    """Give each tool the dotted path by which code calls it."""
    flat = [(tool, source) for source, listed in listings if listed.server is None for tool in listed.tools]
    _refuse_doubles(flat)
    servers = [each for each in listings if each[1].server is not None]
    names = assign([listed.server or "" for _, listed in servers], "server", reserved=RESERVED)
    flat_names = assign([tool.name for tool, _ in flat], "tool", reserved=RESERVED.union(names))
    for name, (tool, source) in zip(flat_names, flat, strict=True):
        yield name, tool, source
    for server, (source, listed) in zip(names, servers, strict=True):
        tool_names = assign([tool.name for tool in listed.tools], "tool", reserved=RESERVED)
        for name, tool in zip(tool_names, listed.tools, strict=True):
            yield f"{server}.{name}", tool, source


def _refuse_doubles(flat: Sequence[tuple[ListedTool, ToolSource]]) -> None:
    found: dict[str, ToolSource] = {}
    for tool, source in flat:
        if (other := found.get(tool.name)) is not None:
            both = source.label if source is other else f"{other.label} and {source.label}"
            raise SettingError(f"tools: there are two tools {tool.name!r} ({both}); give one another name")
        found[tool.name] = source
