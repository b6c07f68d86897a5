"""What an agent's model gets to see: the latest pictures of the code, with the messages that tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from autogen_core.models import ChatCompletionClient, LLMMessage, UserMessage
from pydantic import BaseModel, ValidationError

from codeact_team.pictures import Drawn, Picture, picture_from_base64


@dataclass(frozen=True)
class _Seen:
    text: str
    """Of the message that tells of it."""
    number: int
    picture: Picture


class _SeenState(BaseModel):
    text: str
    number: int
    png: str


class Sight:
    """Keeps pictures beside the context of a model, which holds text only: so neither grows by them.

    Args:
        most: How many pictures the model gets to see at a time.
        client: The model, which may not see; ``None`` where the agent has none.
    """

    def __init__(self, most: int, client: ChatCompletionClient | None) -> None:
        sees = client is not None and client.model_info["vision"]
        self._most = most if sees else 0
        self._count = 0
        self._seen: list[_Seen] = []

    def tell(self, text: str, drawn: Drawn) -> str:
        """The text of a message with what its pictures are called; the model then gets to see them with it."""
        if not self._most:
            return text
        pictures = drawn.pictures[-self._most :]
        numbered = list(enumerate(pictures, self._count + 1))
        self._count += len(pictures)
        names = [f"Picture {number}: {one.width} x {one.height} pixels." for number, one in numbered]
        if left_out := len(drawn.pictures) - len(pictures):
            names.insert(0, f"{left_out} more pictures are not shown to you.")
        told = "\n".join([text, *drawn.problems, *names])
        self._seen = [*self._seen, *(_Seen(told, *one) for one in numbered)][-self._most :]
        return told

    def show(self, messages: Sequence[LLMMessage]) -> list[LLMMessage]:
        """The messages, with the pictures that the model still gets to see."""
        by_text: dict[str, list[_Seen]] = {}
        for seen in self._seen:
            by_text.setdefault(seen.text, []).append(seen)
        return [_with(message, by_text) for message in messages]

    def copy(self) -> Sight:
        """The same pictures, to which others come."""
        # what is seen is replaced, and never changed
        return copy(self)

    def go_on_from(self, other: Sight) -> None:
        """Keep what ``other`` keeps."""
        self._count, self._seen = other._count, other._seen

    def forget(self) -> None:
        """Forget all pictures."""
        self._count, self._seen = 0, []

    def save_state(self) -> dict[str, Any]:
        """The pictures, if there are any."""
        kept = [
            _SeenState(text=one.text, number=one.number, png=one.picture.to_base64()) for one in self._seen
        ]
        return {"pictures": [one.model_dump() for one in kept]} if kept else {}

    def load_state(self, state: Any) -> None:
        """Take up what was saved; what is no picture is left out."""
        self.forget()
        for one in state.get("pictures", ()):
            try:
                kept = _SeenState.model_validate(one)
            except ValidationError:
                continue
            if (picture := picture_from_base64(kept.png)) is not None:
                self._seen.append(_Seen(kept.text, kept.number, picture))
                self._count = max(self._count, kept.number)
        self._seen = self._seen[-self._most :] if self._most else []


def _with(message: LLMMessage, by_text: dict[str, list[_Seen]]) -> LLMMessage:
    if not isinstance(message, UserMessage) or not isinstance(message.content, str):
        return message
    if not (seen := by_text.get(message.content)):
        return message
    shown = [part for one in seen for part in (f"Picture {one.number}:", one.picture)]
    return UserMessage(content=[message.content, *shown], source=message.source)
