"""The answer of an agent as a value that fits a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from codeact_team.errors import SettingError
from codeact_team.execution import SessionResult
from codeact_team.json_answers import UnreadableAnswer, read_value
from codeact_team.parsing import make_json_inert
from codeact_team.tools.argument_checking import ValueChecker
from codeact_team.tools.error_texts import clean

_INSTRUCTIONS = (
    "The answer is not given in plain words: it is a value that fits the JSON Schema below. When the task is solved, "
    "call final_answer(value) in the code with a value of dicts, lists, strings, numbers, booleans and None, or reply "
    "with nothing but the value as JSON.\n\n"
    "{}"
)
HOW_TO_ANSWER = (
    "Reply with nothing but the value as JSON, without other words, or call final_answer(value) in the code."
)
"""What the model is told of words that are no answer."""

_MAX_PROBLEM = 2_000
_MAX_ERRORS = 3

_json_object = TypeAdapter(dict[str, JsonValue])


class Misfit(ValueError):
    """What is no answer as the schema wants it; the text tells the model why."""


def as_schema(given: object) -> Mapping[str, JsonValue]:
    """The JSON Schema that a setting gives: by itself, or as a Pydantic model's class.

    Raises:
        SettingError: If it gives none.
    """
    try:
        if isinstance(given, type) and issubclass(given, BaseModel):
            return given.model_json_schema()
        return _json_object.validate_python(given)
    except Exception as error:
        raise SettingError(
            "output_schema: a JSON Schema is expected, as a mapping, or the class of a Pydantic model: "
            f"{clean(str(error), _MAX_PROBLEM)}"
        ) from error


class OutputSchema:
    """Says what an answer has to be, and reads it as that.

    Args:
        given: A JSON Schema, or the class of a Pydantic model, whose own validators then have to agree as well.

    Raises:
        SettingError: If that cannot be checked.
    """

    def __init__(self, given: Mapping[str, Any] | type[BaseModel]) -> None:
        self.schema = as_schema(given)
        self._model = given if isinstance(given, type) else None
        try:
            self._checker = ValueChecker(self.schema, name="answer", schema_name="the schema")
        except ValueError as error:
            raise SettingError(f"output_schema: {error}") from error

    def describe(self) -> str:
        """What the model is told of it."""
        return _INSTRUCTIONS.format(json.dumps(self.schema, ensure_ascii=False))

    def of_code(self, result: SessionResult) -> str:
        """The JSON of what code has called ``final_answer`` with.

        Raises:
            Misfit: If that does not fit.
        """
        text = result.answer or ""
        if not result.answer_is_json and result.answer_problem:
            raise Misfit(f"final_answer was called with what is no JSON: {_quoted(result.answer_problem)}")
        try:
            # an interpreter may say what it likes
            value = json.loads(text) if result.answer_is_json else text
        except (ValueError, RecursionError):
            raise Misfit("final_answer was called with what is no JSON") from None
        return self._fitting(value)

    def of_words(self, text: str) -> str:
        """The JSON of a model's answer.

        Raises:
            Misfit: If it is none, or does not fit.
        """
        try:
            return self._fitting(read_value(text))
        except UnreadableAnswer as error:
            raise Misfit(_quoted(str(error))) from None

    def _fitting(self, value: JsonValue) -> str:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            self._checker.check_value(value)
            if self._model is not None:
                self._model.model_validate_json(text)
        except ValidationError as error:
            raise Misfit(_described(error)) from None
        except (ValueError, RecursionError) as error:
            raise Misfit(_quoted(str(error))) from None
        # whoever reads it finds no code in it, and still the same value
        return make_json_inert(text)


def _described(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return _quoted(
        "; ".join(
            "".join(["answer", *(f"[{part!r}]" for part in item["loc"])]) + f": {item['msg']}"
            for item in errors[:_MAX_ERRORS]
        )
    )


def _quoted(text: str) -> str:
    return clean(text, _MAX_PROBLEM).rstrip(".")
