"""Answers to calls of tools: values, and the errors that code sees."""

from __future__ import annotations

import builtins
import re
from binascii import a2b_base64
from io import BytesIO

from codeact_team.session.runner.interpreter.channel import decode
from codeact_team.session.runner.interpreter.user_code import interruptible_module, one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

interruptible_module(__name__)

_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*([0-9]{1,15})\s*[,}]')
"""The beginning of an answer, for one that cannot be read beyond that."""
# they came with 3.11
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)


class ToolError(Exception):
    """A tool has failed, or could not be called."""


class ToolDenied(ToolError):
    """The call was not approved."""


class ToolTimeout(ToolError, TimeoutError):
    """The tool's time limit stopped it."""


_ERRORS: dict[object, type[ToolError]] = {"denied": ToolDenied, "timed_out": ToolTimeout}


class Media:
    """A value of a tool that JSON does not have, such as a picture.

    Attributes:
        mime_type: Such as ``image/png``.
        data: The bytes.
    """

    def __init__(self, mime_type: str, data: bytes) -> None:
        self.mime_type = mime_type
        self.data = data

    def image(self) -> Any:
        from PIL import Image

        return Image.open(BytesIO(self.data))

    def __repr__(self) -> str:
        return f"<Media {self.mime_type}, {len(self.data):,} bytes>"

    def _repr_png_(self) -> bytes | None:
        return self.data if self.mime_type == "image/png" else None

    def _repr_html_(self) -> bytes | None:
        return self.data if self.mime_type.partition(";")[0] == "text/html" else None


CLASSES = (ToolError, ToolDenied, ToolTimeout, Media)
"""The members of the module ``tools`` apart from the tools."""
for _class in CLASSES:
    _class.__module__ = "tools"


def read_answer(payload: bytes) -> tuple[int | None, Any, ToolError | None]:
    """Read an answer: the id of its call if it can be read, the value, and the error if there is one."""
    try:
        answer = decode(payload.decode())
        if (error := answer.get("error")) is not None:
            return answer["id"], None, _ERRORS.get(answer.get("outcome"), ToolError)(str(error))
        values = [_value(piece) for piece in answer["content"]]
        return answer["id"], values[0] if len(values) == 1 else values or None, None
    except Exception as error:
        # such as a value that is nested more deeply than this Python can read
        number = _ID.match(payload)
        reason = ToolError(f"the result of the tool cannot be read here: {one_line(error)}")
        return int(number[1]) if number else None, None, reason


def _value(piece: dict[str, Any]) -> Any:
    if "mime_type" in piece:
        return Media(str(piece["mime_type"]), a2b_base64(piece["data"]))
    return piece["value"]


def is_denial(error: BaseException) -> bool:
    """Whether ``error`` consists of denials only: one, or a group of them."""
    waiting = [error]
    for each in waiting:
        # not isinstance(), which the error's class may answer itself
        if _GROUP is not None and issubclass(type(each), _GROUP):
            waiting += _GROUP.exceptions.__get__(each)
        elif not issubclass(type(each), ToolDenied):
            return False
    return True
