"""A recorded run as Markdown, for a report, an issue or a wiki, with its pictures as files beside it."""

from __future__ import annotations

from codeact_team.core.execution import ArtifactReference, Bytes, bare_type
from codeact_team.exports.story import Ended, Happened, Ran, Said, Story, told_in_markdown, told_of_code
from codeact_team.text.quoting import fenced
from codeact_team.text.visibility import visible

_PICTURES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
}


def markdown_of(story: Story, artifact: Bytes, pictures: str) -> tuple[str, dict[str, bytes]]:
    """A run in Markdown, and its pictures by their names.

    Args:
        story: What is told.
        artifact: Where the bytes of artifacts are.
        pictures: The directory of the pictures, as the Markdown names it.
    """
    parts: list[str] = []
    drawn: dict[str, bytes] = {}
    for item in story.items:
        match item:
            case Said() | Happened() | Ended():
                parts.append(told_in_markdown(item))
            case Ran():
                parts += [fenced(visible(block.code).rstrip(), block.language) for block in item.blocks]
                if item.end is None:
                    parts.append(told_of_code(item))
                    continue
                if output := visible(item.end.output).rstrip():
                    parts.append(fenced(output, "text"))
                parts.append(told_of_code(item))
                for reference in item.end.artifacts:
                    if (found := _picture(reference, artifact)) is not None:
                        name = f"figure-{len(drawn) + 1}.{found[0]}"
                        drawn[name] = found[1]
                        parts.append(f"![{name}](<{pictures}/{name}>)")
    return "\n\n".join(filter(None, parts)) + "\n", drawn


def _picture(reference: ArtifactReference, artifact: Bytes) -> tuple[str, bytes] | None:
    """The ending and the bytes of what is drawn; what is printed of a table is in the output."""
    for form in (reference, *reference.other_forms):
        ending = _PICTURES.get(bare_type(form.mime_type))
        if ending is not None and (data := artifact(form.sha256)) is not None:
            return ending, data
    return None
